"""Bind a call to a process: its arguments, variables, input and folder.

No value becomes code or an option, or appears in the part of the process table that everybody can
read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from plait.core.errors import InputError, LimitError, Problem, ShellRefusedError, ValueRefusedError
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.patterns import lazy_pattern
from plait.core.records import dataclass
from plait.core.values import Json, json_text, reveal_text, text
from plait.template import sinks
from plait.template.compiled import Budget, Piece, PlacedValue
from plait.template.nodes import Text
from plait.template.template import Template
from plait.tools.bind_common import BindRequest, bad_config, config_map, read_limits
from plait.tools.config import CONTEXT, Config
from plait.tools.invocation import ProcessCall

if TYPE_CHECKING:
    from plait.template.shell.binding import BoundScript
    from plait.template.shell.places import Dialect
    from plait.template.shell.rules import Code

_UNKNOWN: Final = "\0"
"""A word with an unknown value, to test whether it would be code."""
_HARMLESS: Final = frozenset({"--project-path", "--noprofile", "--norc"})
"""Options of Plait's own runtimes that announce no code. Loading the tables for all options takes
longer than starting a tool.
"""
_OWN_FILE: Final = "{tool_path}"
"""A tool whose own file is the program reads data, not code, from its standard input."""
_OPERATOR: Final = lazy_pattern(
    r"[|&;<>]+|[0-9]*[<>]+(?:&[0-9-]+|[\w./~-]+)?|[^&|<>=?\\'\"]*;|\$\(.*|`.*", re.DOTALL
)
"""Matches a word that means something only to a shell: `|`, `&&`, `2>&1`, `>file`, `cd;`, `$(…`."""


@dataclass(frozen=True, slots=True)
class _Where:
    """The folders in which a process would search its program."""

    path: str
    cwd: str


def bind_process(call: BindRequest, config: Config) -> ProcessCall:
    command = config.written.get("command")
    if not isinstance(command, str) or not command:
        raise InputError(
            f"the chain of '{call.chain.tool.id}' names no command",
            call.chain.tool.path,
            "set config.command in the tool or its runtime",
            code="no-command",
        )
    args = config.written.get("args") or []
    if not isinstance(args, Sequence) or isinstance(args, str):
        raise InputError(
            "config.args is a list", call.chain.tool.path, "write args: [a, b]", code="bad-config"
        )
    clear = config.in_clear()
    words = [*_command_words(command, config, has_args=bool(args)), *args]
    cwd = _directory(call, config)
    where = _Where(call.environment.plain.get("PATH", os.defpath), cwd)
    argv, bound = _argv(words, config, clear, where)
    if _OWN_FILE not in words:
        _require_no_code_input(argv, config, where)
    return ProcessCall(
        argv=tuple(argv),
        cwd=cwd,
        env={**_child_environment(call, clear), **bound},
        stdin=_stdin(clear),
        limits=read_limits(call, config),
    )


def _directory(call: BindRequest, config: Config) -> str:
    written = config.written.get("cwd") or ""
    if not isinstance(written, str):
        raise bad_config(config, "cwd", "text", "write cwd: some/folder")
    if not written or config.has_unresolved(
        config.template(written)
    ):  # a tool without an anchor has no {anchor_path}
        return call.cwd
    return os.path.join(call.cwd, text(config.value("cwd")))


def _command_words(command: str, config: Config, *, has_args: bool) -> list[str]:
    """Split `command: "echo ${X}"` without args into words, as the author wrote it; a
    placeholder is never split.
    """
    if has_args or not any(char.isspace() for char in command):
        return [command]
    parts = config.template(command).leaf.compiled.parts
    # A mark replaces each placeholder, so blanks and quotes inside it split nothing.
    marks = {
        f"\0{index}\0": command[part.start : part.end]
        for index, part in enumerate(parts)
        if not isinstance(part, Text)
    }
    marked = [
        part.text if isinstance(part, Text) else f"\0{index}\0" for index, part in enumerate(parts)
    ]
    import shlex

    try:
        words = shlex.split("".join(marked))
    except ValueError:
        raise bad_config(
            config, "command", "words: a quote is not closed", "close it, or write args: [...]"
        ) from None
    quoted = shlex.split("".join(marked), posix=False)
    operator = next(filter(_OPERATOR.fullmatch, quoted), None)
    if operator is not None:
        raise InputError(
            f"config.command starts a program, no shell: '{operator}' would be one of its "
            "arguments",
            config.where,
            "write command: sh and args: [-c, the whole line]; or args: [...], if it is to be an "
            "argument",
            code="shell-in-command",
        )
    for mark, placeholder in marks.items():
        words = [word.replace(mark, placeholder) for word in words]
    return words


def _argv(
    words: Sequence[Json], config: Config, clear: Config, where: _Where
) -> tuple[list[str], dict[str, str]]:
    """Fill the arguments.

    In text that a shell reads as a script, values become variables. Text that another
    interpreter reads as code may contain only the author's text.
    """
    argv: list[str] = []
    variables: dict[str, str] = {}
    given: set[int] = set()
    begun: dict[int, str] = {}
    budget, seen = Budget(), 0
    for written in words:
        budget.spend(argv[seen:], config.where)
        seen = len(argv)
        template = config.template(written) if isinstance(written, str) else None
        if template is None or not template.placeholders:
            argv += _words(written, config, clear)
            continue
        if _surely_data(template, argv):
            if argv and config.is_gone(template):
                _require_option_value(argv, written, config)
                continue
            argv += _words(written, config, clear)
            continue
        code = _code_at(len(argv), [*argv, _UNKNOWN], where)
        if code is not None and code.dialect is not None:
            bound = _script(written, clear, code.dialect)
            argv.append(bound.script)
            variables |= bound.env
            continue
        if argv and code is None and config.is_gone(template):
            _require_option_value(argv, written, config)
            continue  # it has no value
        more = _words(written, config, clear)
        if not config.only_of_author(template):
            code = code or _code_at(len(argv), [*argv, *more], where)
            # If the caller chooses the program, the caller also chooses its input.
            if code is not None and code.program not in given and code.program < len(argv):
                raise _value_as_code(written, code, config)
            given.update(range(len(argv), len(argv) + len(more)))
        if argv and begins_with_value(template, config, clear):
            begun |= {at: str(written) for at in range(len(argv), len(argv) + len(more))}
        argv += more
    require_no_options(argv, begun, config)
    return argv, variables


def _surely_data(template: Template, before: Sequence[str]) -> bool:
    """Is it the author's program, or a path of the call after words that cannot announce code?"""
    if not before and all(placeholder.kind == "env" for placeholder in template.placeholders):
        return True
    return all(placeholder in CONTEXT for placeholder in template.placeholders) and all(
        word[:1] not in ("-", "+") or word in _HARMLESS for word in before
    )


def _require_option_value(argv: Sequence[str], written: Json, config: Config) -> None:
    """Refuse a missing value of an option, which would take the next word instead."""
    from plait.template.options import takes_next_word

    if takes_next_word(argv):
        raise InputError(
            f"the argument '{written}' is missing, and an option before it needs it as its value",
            config.where,
            "give it, or declare the parameter as required or with a default",
            code="missing-parameter",
        )


def begins_with_value(template: Template, config: Config, clear: Config) -> bool:
    """Does the argument begin with a value that may not be an option?"""
    pieces = template.pieces(clear.names_for(template), env=clear.env)
    first = next((piece for piece in pieces if _text(piece)), None)
    return isinstance(first, PlacedValue) and not config.may_be_option(template)


def require_no_options(argv: Sequence[str], begun: Mapping[int, str], config: Config) -> None:
    """Refuse values that a program reads as options.

    `begun`: the words that begin with a value, by position, as they are written.
    """
    # `tar` also reads its first word as options without a '-'.
    if not any(argv[at][:1] in ("-", "+") or at == 1 for at in begun):
        return
    from plait.template.options import Argument, option_words

    found = option_words([Argument(word) for word in argv], in_shell=False)
    problems = [
        Problem(
            f"the argument '{written}' could be taken for an option of "
            f"{os.path.basename(argv[0])}: "
            "its value begins like one",
            config.where,
            f"{found[at].fix}, or declare the parameter with x-option: true",
            code="option-like",
        )
        for at, written in begun.items()
        if at in found
    ]
    if problems:
        raise ValueRefusedError.together(problems)


def _code_at(place: int, argv: Sequence[str], where: _Where) -> Code | None:
    """The first word, at this place or later, that a program reads as code."""
    from plait.template.shell.rules import code_in

    found = [code for code in code_in(_by_real_names(argv, where)) if code.place >= place]
    return min(found, key=lambda code: code.place, default=None)


def _by_real_names(argv: Sequence[str], where: _Where) -> list[str]:
    """The same words with the real names of programs: a link to bash becomes bash."""
    from plait.template.shell.rules import is_interpreter, runs_another

    named = list(argv)
    for at, word in enumerate(argv):
        name = os.path.basename(word)
        if is_interpreter(name) or word[:1] in ("-", _UNKNOWN):
            continue
        real = os.path.basename(_real_program(word, where))
        if is_interpreter(real):
            named[at] = real
        if at == 0 and not runs_another(name) and not runs_another(real):
            break
    return named


def _real_program(word: str, where: _Where) -> str:
    places = [where.cwd] if "/" in word else where.path.split(os.pathsep)
    candidates = (os.path.join(folder or where.cwd, word) for folder in places)
    return next((os.path.realpath(path) for path in candidates if os.path.isfile(path)), word)


def _value_as_code(written: str, code: Code, config: Config) -> ShellRefusedError:
    return ShellRefusedError(
        f"the argument '{written}' is code to {code.name}, and a value in it would become code",
        config.where,
        "let the code read the value: from an argument of its own behind it, from config.env, "
        'or from standard input with input_data: "{params_json}"; '
        "a brace of the code's own is written with a blank: { x }",
        code="value-as-code",
    )


def _require_no_code_input(argv: Sequence[str], config: Config, where: _Where) -> None:
    """Raise an error if an interpreter reads its program from stdin and a caller's value is
    part of it.
    """
    if not config.has("input_data") or config.only_of_author(
        config.template(config.written["input_data"])
    ):
        return
    from plait.template.shell.rules import reader_of_input

    name = reader_of_input(_by_real_names(argv, where))
    if name is not None:
        raise ShellRefusedError(
            f"'{name}' reads its standard input as code, and a value in config.input_data would "
            "become code",
            config.where,
            "put the code into config.args or a file, and let it read the value from an argument "
            "of its own, "
            "from config.env, or from standard input",
            code="value-as-code",
        )


def _script(written: str, clear: Config, dialect: Dialect) -> BoundScript:
    from plait.template.shell.script import bind_shell  # few tools have a script

    template = clear.template(written)
    bound = bind_shell(template, clear.names_for(template), env=clear.env, dialect=dialect)
    if bound.files:
        raise LimitError(
            f"a value is too long for the script '{written}'",
            clear.where,
            "let the script read it from standard input: input_data",
            code="too-large",
        )
    return bound


def _words(written: Json, config: Config, clear: Config) -> list[str]:
    if not isinstance(written, str):
        return [reveal_text(written)]
    template = config.template(written)
    if not template.leaf.compiled.placeholder_count:
        return sinks.render_words(template, {}, env={})
    names = clear.names_for(template)
    pieces = template.pieces(names, env=clear.env)
    shown = template.pieces(config.names_for(template), env=config.env)
    if "".join(map(_text, pieces)) != "".join(map(_text, shown)):
        raise secret_argument(written, config)
    match pieces:
        case [PlacedValue(list() as items)]:
            return [reveal_text(item) for item in items]
    return sinks.render_words(template, names, env=clear.env)


def _text(piece: Piece) -> str:
    return piece if isinstance(piece, str) else text(piece.value)


def secret_argument(written: str, config: Config) -> ValueRefusedError:
    return ValueRefusedError(
        f"the argument '{written}' would show a secret to every process of this machine",
        config.where,
        "hand it over in env_config.env or in input_data",
        code="secret-in-argv",
    )


def _child_environment(call: BindRequest, config: Config) -> dict[str, str]:
    own = config_map(config, "env")
    child = {
        **_params_as_variables(call, config),
        **call.environment.plain,
        **{name: reveal_text(value) for name, value in own.items()},
    }
    for name, value in child.items():
        if "\0" in value or "\0" in name or "=" in name or not name:
            raise ValueRefusedError(
                f"the environment variable '{name}' cannot be passed",
                config.where,
                "remove NUL from it",
                code="bad-env",
            )
    return child


def _params_as_variables(call: BindRequest, config: Config) -> dict[str, str]:
    """Plain parameters as variables PREFIX_NAME, for languages in which reading JSON is hard."""
    prefix = config.value("params_env")
    if not isinstance(prefix, str) or not prefix:
        return {}
    plain = {
        name: value
        for name, value in call.params.items()
        if not isinstance(value, Mapping | list) and name.isidentifier() and name.isascii()
    }
    variables: dict[str, str] = {}
    for name, value in plain.items():
        if (variable := prefix + name.upper()) in variables:
            alike = sorted(other for other in plain if other.upper() == name.upper())
            raise ValueRefusedError(
                f"the parameters {' and '.join(alike)} would both be the variable {variable}",
                config.where,
                "give one of them another name, or read both from standard input",
                code="bad-env",
            )
        variables[variable] = reveal_text(value)
    return variables


def _stdin(config: Config) -> bytes:
    if not config.has("input_data"):
        return b""
    value = config.value("input_data")
    if value is None:  # one `{name}` without a value
        return b""
    written = value if isinstance(value, str) else json_text(value)
    return written.encode("utf-8", "surrogateescape")
