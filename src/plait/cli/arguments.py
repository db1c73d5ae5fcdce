"""Options of a command: argparse, with examples in the help and suggestions in errors.

No message quotes the value of an option: it may be secret.
"""

from __future__ import annotations

import argparse
import math
import shlex
from collections.abc import Sequence

from plait.core.errors import InputError, closest_name, shorten
from plait.core.hints import Any, NoReturn


class HelpWanted(Exception):
    """Raised if `--help` was given."""


class _Help(argparse.Action):
    def __call__(self, *_: object) -> NoReturn:
        raise HelpWanted


def _fixed_width_formatter(prog: str) -> argparse.HelpFormatter:
    """A formatter of a fixed width: argparse makes one for each option, and asking is slow."""
    return argparse.HelpFormatter(prog, width=80)


class _HelpFormatter(argparse.HelpFormatter):
    """Help as Python 3.13 prints it, on every Python: `-j, --max-parallel N`."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {value}"


class Parser(argparse.ArgumentParser):
    """The options of one command; its help starts with two examples."""

    def __init__(self, command: str, what: str, *, examples: Sequence[str]) -> None:
        super().__init__(
            f"plait {command}",
            description=None,
            add_help=False,
            allow_abbrev=False,
            formatter_class=_fixed_width_formatter,
        )
        self.command = command
        self.what = what
        self.examples = examples
        self.add_argument("-h", "--help", nargs=0, action=_Help, help="this page")
        self.add_argument(
            "--color", metavar="WHEN", help="auto (default: on a terminal), always or never"
        )

    def add_argument(self, *names: Any, **how: Any) -> argparse.Action:
        if how.get("help") == argparse.SUPPRESS:
            how["help"] = argparse.SUPPRESS  # argparse recognises only this object
        return super().add_argument(*names, **how)

    def format_help(self) -> str:
        self.formatter_class = _HelpFormatter
        examples = "".join(f"  {example}\n" for example in self.examples)
        return f"plait {self.command}: {self.what}\n\n{examples}\n{super().format_help()}"

    def read(self, arguments: list[str]) -> argparse.Namespace:
        """Read the options; an error names all unknown ones."""
        try:
            options, unknown = self.parse_known_args(arguments)
            if unknown:  # argparse does not read an optional argument after an option
                options, unknown = self.parse_known_intermixed_args(arguments)
        except InputError:  # an unknown option explains better what is missing
            words = arguments[: arguments.index("--")] if "--" in arguments else arguments
            known = {name for action in self._actions for name in action.option_strings}
            unknown = [
                word
                for word in words
                if word.startswith("--") and word.partition("=")[0] not in known
            ]
            if not unknown:
                raise
        if unknown:
            raise self._unknown(unknown)
        return options

    def read_for_help(self, arguments: list[str]) -> argparse.Namespace:
        """Read the options beside `--help`; unreadable ones are left out."""
        words = [word for word in arguments if word not in ("-h", "--help")]
        return self.parse_known_args(words)[0]

    def error(self, message: str) -> NoReturn:
        raise InputError(
            f"plait {self.command}: {_reword(message)}",
            fix=f"see plait {self.command} --help",
            code="arguments",
        )

    def _unknown(self, arguments: list[str]) -> InputError:
        options = [
            argument.partition("=")[0][:60] for argument in arguments if argument.startswith("-")
        ]
        known = [name for action in self._actions for name in action.option_strings]
        if not options:
            what = f"plait {self.command}: more arguments than it takes"
            name, equals, value = arguments[0].partition("=")
            fix = "quote a text with blanks: '…'"
            if equals and "-i" in known and name.removesuffix(":").isidentifier():
                given = shlex.quote(f"{name[:60]}={shorten(value, 60)}")
                fix = f"a value is given with -i: -i {given}"
            return InputError(what, fix=fix, code="arguments")
        guesses = dict.fromkeys(
            guess for option in options if (guess := closest_name(option, known))
        )
        return InputError(
            f"plait {self.command} has no option {', '.join(options)}",
            fix=f"did you mean {' '.join(guesses)}? plait help {self.command} lists all"
            if guesses
            else f"options: {', '.join(self._help_options())}; "
            "a text that starts with '-' is written after '--'",
            code="unknown-option",
        )

    def _help_options(self) -> list[str]:
        """The options that the help names; the others are other names for them."""
        return [
            name
            for action in self._actions
            if action.help != argparse.SUPPRESS
            for name in action.option_strings
            if name.startswith("--")
        ]


def _reword(message: str) -> str:
    """The message of argparse without the value that it quotes."""
    subject, _, reason = message.partition(": ")
    name = subject.removeprefix("argument ").rpartition("/")[2]
    if "required" in subject:
        return f"{reason} is missing"
    if "not allowed with" in reason:
        return f"{name} and {reason.rpartition(' ')[2]} exclude each other"
    if "explicit argument" in reason:
        return f"{name} takes no value"
    if "expected" in reason:
        return f"{name} needs a value"
    return f"{name} cannot take this value"


def require_choice(what: str, given: str, known: Sequence[str]) -> str:
    """Return `given`; if it is not known, an error suggests the closest name."""
    if given in known:
        return given
    guess = closest_name(given, known)
    raise InputError(
        f"there is no {what} '{given[:60]}'",
        fix=(f"did you mean '{guess}'? " if guess else "") + f"{what}s: {', '.join(known)}",
        code=f"unknown-{what}",
    )


def seconds(given: str | None, option: str = "--timeout") -> float | None:
    if given is None:
        return None
    try:
        limit = float(given)
    except ValueError:
        limit = math.nan
    if not 0 < limit < math.inf:
        raise InputError(
            f"{option} needs a number of seconds above 0",
            fix=f"for example {option} 30",
            code="arguments",
        )
    return limit
