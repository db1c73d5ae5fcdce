"""The plain form of a command line, read without argparse, which takes longer to load than a tool
to run.

Plain is: every option in full, its value in the next word, as many arguments as
the command takes.  Whatever else there may be (`--help`, `--params=…`, `--`, a
mistake) is left to argparse, which reads the plain form just alike.
"""

from __future__ import annotations

from types import SimpleNamespace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


class FastArguments:
    """Takes the options of a command as a parser would, and reads them if that is easy."""

    def __init__(self) -> None:
        self._arguments: list[str] = []
        self._options: dict[str, tuple[str, str]] = {}
        self._defaults: dict[str, Any] = {}

    def add_argument(
        self,
        *names: str,
        action: str = "store",
        default: Any = None,
        metavar: str | None = None,  # noqa: ARG002 - for people
        help: str | None = None,  # noqa: ARG002
    ) -> None:
        if not names[0].startswith("-"):
            self._arguments.append(names[0])
            return
        long = next(name for name in names if name.startswith("--"))
        place = long.removeprefix("--").replace("-", "_")
        self._options |= dict.fromkeys(names, (place, action))
        self._defaults[place] = False if action == "store_true" else default

    def read(self, words: Sequence[str]) -> SimpleNamespace | None:
        """The options, or None if these words are not plain."""
        said = dict(self._defaults)
        arguments: list[str] = []
        rest = iter(words)
        for word in rest:
            if not word.startswith("-"):
                arguments.append(word)
                continue
            place, action = self._options.get(word, ("", ""))
            value = True if action == "store_true" else next(rest, "-")
            if not place or (isinstance(value, str) and value.startswith("-")):
                return None
            said[place] = [*said[place], value] if action == "append" else value
        if len(arguments) != len(self._arguments):
            return None
        return SimpleNamespace(**said, **dict(zip(self._arguments, arguments, strict=True)))
