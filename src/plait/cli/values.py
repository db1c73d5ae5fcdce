"""Values from the command line: `-i`, strict JSON and numbers.  No error message quotes a value.

    -i name=text      text, or the type that a parameter of this name declares
    -i name:=json     JSON
    -i @file          a map of names in a JSON or YAML file; @- reads standard input

One `-i` for one name wins over a file.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence

from plait.core.errors import InputError
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.os_errors import raise_machine_limit
from plait.core.values import Json, Secret, finite_number, json_error, text

if TYPE_CHECKING:
    import argparse

    from plait.cli.arguments import Parser
    from plait.scope import Scope


HIDDEN: Final = "==SUPPRESS=="
"""The help of an option that is another name for an existing one: argparse omits it."""


def add_inputs(parser: Parser, what: str, *hidden: str) -> None:
    """Add `-i`, and other names of it that the help omits."""
    parser.add_argument(
        "-i",
        "--input",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help=f"{what} (may be repeated); KEY:=JSON gives JSON, @FILE a map in a JSON or YAML file",
    )
    if hidden:
        parser.add_argument(*hidden, dest="input", action="append", default=[], help=HIDDEN)


def read_inputs(given: Sequence[str]) -> tuple[dict[str, Json], set[str]]:
    """The values of each `-i`, and the names of those that are text and may get a type."""
    filed: dict[str, Json] = {}
    single: dict[str, Json] = {}
    texts: set[str] = set()
    for argument in given:
        if argument.startswith("@"):
            filed |= read_mapping_file(argument[1:])
            continue
        name, equals, value = argument.partition("=")
        is_json = name.endswith(":")
        name = name.removesuffix(":")
        if not equals or not name:
            raise InputError(
                "-i needs KEY=VALUE, KEY:=JSON or @FILE",
                fix="for example -i folder=src",
                code="arguments",
            )
        if name in single:
            raise InputError(
                f"-i gives '{name[:60]}' twice",
                fix=f"give a list as JSON: -i {name[:60]}:='[1, 2]'",
                code="arguments",
            )
        single[name] = read_json(value, f"-i {name[:60]}:=") if is_json else value
        if not is_json:
            texts.add(name)
    return {**filed, **single}, texts


def read_mapping_file(path: str) -> dict[str, Json]:
    """A map of names from a JSON or YAML file; `-` is standard input."""
    place = "standard input" if path == "-" else path
    text = read_template_text("-") if path == "-" else file_text(path)
    if not path.endswith((".yaml", ".yml")):
        return require_mapping(read_json(text, place), place)
    from plait.core.documents import parse

    return require_mapping(parse(text, path).data(), place)


def add_values(parser: Parser) -> None:
    add_inputs(parser, "the value of a name")
    parser.add_argument("--values", metavar="JSON", help=HIDDEN)
    parser.add_argument("--values-file", metavar="FILE", help=HIDDEN)
    parser.add_argument(
        "--secret",
        metavar="NAME",
        action="append",
        default=[],
        help="show this value as *** (may be repeated)",
    )


def parse_values(options: argparse.Namespace) -> dict[str, Json]:
    """The values of `-i`, and of its older forms; those named by `--secret` are secrets."""
    values: dict[str, Json] = {}
    if options.values_file is not None:
        values |= require_mapping(
            read_json(file_text(options.values_file), options.values_file), options.values_file
        )
    if options.values is not None:
        values |= require_mapping(read_json(options.values, "--values"), "--values")
    values |= read_inputs(options.input)[0]
    for name in options.secret:
        if name not in values:
            what = f"--secret {name[:60]}: no such value is given"
            raise InputError(
                what, fix=f"known: {', '.join(values) or 'nothing'}", code="unknown-name"
            )
        values[name] = _to_secrets(values[name])
    return values


def secret_texts(value: Json) -> Iterator[str]:
    """The texts of all secrets in a value, at any depth."""
    match value:
        case Secret():
            yield value.reveal()
        case Mapping():
            yield from secret_texts(list(value.values()))
        case list():
            for inner in value:
                yield from secret_texts(inner)


def _to_secrets(value: Json) -> Json:
    if isinstance(value, Mapping):
        return {key: _to_secrets(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_to_secrets(item) for item in value]
    return Secret(text(value))


def make_scope(
    values: Mapping[str, Json],
    *,
    env: Mapping[str, str] | None = None,
    directory: str = ".",
    commands: bool = True,
) -> Scope:
    """A scope with these values, and below them the computed ones.

    `env` replaces the environment of the process.  Without `commands`, `${cmd:…}` runs nothing and
    is unknown.
    """
    from plait.app.toolbox import sources
    from plait.scope import Scope

    scope = Scope(label="nothing", sources=sources(directory, commands=commands))
    if env is not None:
        scope = scope.frame("environment", env={"env": dict(env)})
    return scope.frame("values", captures=values)


def read_json(given: str, place: str, *, line: int | None = None) -> Json:
    """Parse JSON without duplicate keys. An error gives the position of the problem, and quotes
    nothing.

    `line`: the number of the line in a file that `given` is.
    """
    try:
        return json.loads(
            given, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=finite_number
        )
    except json.JSONDecodeError as raised:
        error = json_error(raised)
        what = f"this is not JSON: {error.msg[:1].lower()}{error.msg[1:]}"
        where = f"{place}:{line or error.lineno}:{error.colno}"
        raise InputError(what, where, 'for example {"name": "world"}', code="not-json") from None
    except _RefusedError as refused:
        raise InputError(refused.what, _at(place, line), refused.fix, code="not-json") from None
    except RecursionError:
        raise InputError(
            "this JSON is nested too deeply", _at(place, line), code="not-json"
        ) from None
    except ValueError:
        raise InputError(
            "a number in this JSON is too long",
            _at(place, line),
            "write it as text",
            code="not-json",
        ) from None


def _at(place: str, line: int | None) -> str:
    return place if line is None else f"{place}:{line}"


class _RefusedError(Exception):
    def __init__(self, what: str, fix: str) -> None:
        self.what, self.fix = what, fix


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise _RefusedError("a key stands twice in one object", "remove or rename all but one")
    return table


def _no_constant(name: str) -> Json:
    raise _RefusedError(f"{name} is not JSON", "write a finite number, null or text")


def require_mapping(value: Json, place: str) -> dict[str, Json]:
    if isinstance(value, dict):
        return value
    raise InputError(
        "this must be a map of names", place, 'for example {"name": "world"}', code="wrong-type"
    )


def require_env(value: Json, place: str) -> dict[str, str]:
    env = require_mapping(value, place)
    if all(isinstance(item, str) for item in env.values()):
        return env
    raise InputError(
        "environment variables are text", place, "put the values in quotes", code="wrong-type"
    )


def read_template_text(text: str) -> str:
    """The text of a template; `-` reads standard input."""
    return _decode(sys.stdin.buffer.read(), "standard input") if text == "-" else text


def file_text(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return _decode(file.read(), path)
    except OSError as error:
        raise_machine_limit(error)
        what = f"this file cannot be read: {error.strerror}"
        raise InputError(what, path, "check the path", code="no-file") from None
    except ValueError:
        raise InputError(
            "this is not a path", fix="remove the NUL character", code="no-file"
        ) from None


def _decode(data: bytes, place: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        what = f"byte {error.start:,} is not UTF-8"
        raise InputError(what, place, "give it as UTF-8", code="not-utf-8") from None


def working_directory(path: str | None) -> str:
    """`--cwd`, checked; the current directory if none is given."""
    if path is None:
        return os.curdir
    if not os.path.isdir(path):
        raise InputError(
            "there is no such directory", path[:200], "check --cwd", code="no-directory"
        )
    return path


def whole_number(option: str, given: str | None) -> int | None:
    if given is None:
        return None
    if not (given.isascii() and given.isdecimal() and 0 < len(given) < 10 and int(given) > 0):
        raise InputError(
            f"{option} needs a whole number above 0, got '{given}'",
            fix=f"for example {option} 8",
            code="arguments",
        )
    return int(given)
