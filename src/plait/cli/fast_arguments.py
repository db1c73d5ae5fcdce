"""Read a simple command line without argparse, which takes longer to load than a tool to run.

Simple means: every option in full, its value in the next word, as many arguments as the command
takes, of which a single one may be omitted. Everything else (`--help`, `--params=…`, `--`, a
mistake) is left to argparse, which reads a simple line in the same way.
"""

from __future__ import annotations

from types import SimpleNamespace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


class FastArguments:
    """Has the methods of a parser that `configure` of a command uses."""

    def __init__(self) -> None:
        self._arguments: list[str] = []
        self._can_lack = False
        self._options: dict[str, tuple[str, str]] = {}
        self._defaults: dict[str, Any] = {}
        self.add_argument("--color")

    def add_argument(
        self,
        *names: str,
        action: str = "store",
        default: Any = None,
        nargs: str | None = None,
        dest: str | None = None,
        metavar: str | None = None,  # noqa: ARG002 - only argparse shows it
        help: str | None = None,  # noqa: ARG002
    ) -> None:
        if not names[0].startswith("-"):
            self._arguments.append(names[0])
            self._can_lack = nargs == "?"
            return
        long = next(name for name in names if name.startswith("--") or dest)
        place = dest or long.removeprefix("--").replace("-", "_")
        self._options |= dict.fromkeys(names, (place, action))
        self._defaults[place] = False if action == "store_true" else default

    def read(self, words: Sequence[str]) -> SimpleNamespace | None:
        """Return the options, or None if the line is not simple."""
        options = dict(self._defaults)
        arguments: list[str | None] = []
        rest = iter(words)
        for word in rest:
            if not word.startswith("-"):
                arguments.append(word)
                continue
            place, action = self._options.get(word, ("", ""))
            value = True if action == "store_true" else next(rest, "-")
            if not place or (isinstance(value, str) and value.startswith("-")):
                return None
            options[place] = [*options[place], value] if action == "append" else value
        if self._can_lack and not arguments:
            arguments = [None]
        if len(arguments) != len(self._arguments):
            return None
        return SimpleNamespace(**options, **dict(zip(self._arguments, arguments, strict=True)))
