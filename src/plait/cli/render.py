"""`plait render`: fill one template, or a stream of cases.

In a single text `${env.X}`, `${file:…}` and `${cmd:…}` work, and `--env` replaces the environment.
A case sees only the values in its line, so a file gives the same answers on every machine (except
dates and uuids).

A case is a JSON object on one line: `{"template", "profile", "values", "strict", "env", "sink"}`.
Only the template is required; other keys are ignored.  Each line gives one line, `{"value": …}` or
`{"error": …}`; blank lines are skipped.  The exit code is 2 if a line gave an error.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from plait.cli.values import (
    add_values,
    make_scope,
    parse_values,
    read_json,
    read_template_text,
    require_env,
    require_mapping,
    secret_texts,
)
from plait.core.errors import InputError, PlaitError
from plait.core.hints import TYPE_CHECKING, BinaryIO, Final
from plait.core.values import Json
from plait.views.terminal import error_data, json_bytes, write_json, write_value

if TYPE_CHECKING:
    from plait.cli.arguments import Parser
    from plait.scope import Scope

EXAMPLES: Final = (
    """plait render 'Hello ${name}' -i name=world""",
    """plait render --cases cases.jsonl > answers.jsonl""",
)


def configure(parser: Parser) -> None:
    parser.add_argument(
        "text", metavar="TEXT", nargs="?", help="the template; - reads standard input"
    )
    parser.add_argument(
        "--profile",
        default="workflow",
        metavar="P",
        help="prompt, directive, graph, workflow (default) or config",
    )
    add_values(parser)
    parser.add_argument("--env", metavar="JSON", help="the environment, instead of the real one")
    parser.add_argument(
        "--lenient", action="store_true", help="keep a placeholder without a value as it is written"
    )
    parser.add_argument(
        "--strict", action="store_true", help="the opposite of --lenient, which is the default"
    )
    parser.add_argument(
        "--sink",
        metavar="S",
        help="fill it for value (default), text, argv, shell, json, url, header or env",
    )
    parser.add_argument(
        "--tree", action="store_true", help="TEXT is JSON; every string in it is a template"
    )
    parser.add_argument("--json", action="store_true", help='print {"value": …} or {"error": …}')
    parser.add_argument(
        "--cases", metavar="FILE", help="JSON Lines, one case per line; - reads standard input"
    )


def run(options: argparse.Namespace) -> int:
    if options.cases is not None:
        return _run_cases(options)
    value = _render_one(options)
    if options.json:
        write_json({"value": value})
    else:
        write_value(value)
    return 0


def _render_one(options: argparse.Namespace) -> Json:
    if options.text is None:
        raise InputError(
            "plait render: TEXT is missing",
            fix="give a template, - for standard input, or --cases",
            code="arguments",
        )
    text = read_template_text(options.text)
    template = read_json(text, "TEXT") if options.tree else text
    env = None if options.env is None else require_env(read_json(options.env, "--env"), "--env")
    values = parse_values(options)
    scope = make_scope(values, env=env)
    environment = dict(os.environ) if env is None else env
    filled = _render_template(
        template, scope, options.profile, options.sink, strict=not options.lenient, env=environment
    )
    # Mask secrets: a sink for a program reveals them.
    hidden = [values[name] for name in options.secret]
    if not hidden:
        return filled
    from plait.core.masking import Masker, mask_value

    return mask_value(filled, Masker(secret_texts(hidden)).mask)


def _render_template(
    template: Json,
    values: Mapping[str, Json] | Scope,
    profile: str,
    sink: str | None,
    *,
    strict: bool,
    env: Mapping[str, str] | None,
) -> Json:
    from plait.app import api as app

    if sink is None:
        return app.render(template, values, profile=profile, strict=strict, env=env)
    return app.render_to(sink, template, values, profile=profile, strict=strict, env=env)


# ── cases ────────────────────────────────────────────────────────────────


def _run_cases(options: argparse.Namespace) -> int:
    alone = {
        "TEXT": options.text,
        "-i": options.input or None,
        "--values": options.values,
        "--values-file": options.values_file,
    }
    if also := [name for name, given in alone.items() if given is not None]:
        raise InputError(
            f"plait render: --cases and {also[0]} exclude each other", code="arguments"
        )
    name = "<stdin>" if options.cases == "-" else options.cases
    with _open_cases(options.cases) as lines, _quiet():
        return _answer(lines, name)


def _answer(lines: Iterable[bytes], name: str) -> int:
    status = 0
    out = sys.stdout.buffer
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        answer = _case_answer(line, name, number)
        if "error" in answer:
            status = 2
        try:
            out.write(json_bytes(answer))
        except PlaitError as error:  # a value without a JSON form
            status = 2
            out.write(json_bytes({"error": error_data(error)}))
        # Flush each answer: the caller may wait for it before it writes the next line.
        out.flush()
    return status


def _case_answer(line: bytes, name: str, number: int) -> dict[str, Json]:
    try:
        return {"value": _case_value(line, name, number)}
    except PlaitError as error:
        if error.exit_code == 4:
            raise
        return {"error": error_data(error)}


def _case_value(line: bytes, name: str, number: int) -> Json:
    place = f"{name}:{number}"
    try:
        case = read_json(line.decode("utf-8"), name, line=number)
    except UnicodeDecodeError:
        raise InputError("this line is not UTF-8", place, code="not-utf-8") from None
    if not isinstance(case, dict) or "template" not in case:
        raise InputError(
            "a case is a map with a template", place, '{"template": "…"}', code="wrong-type"
        )
    values = case.get("values")
    env = case.get("env")
    strict = case.get("strict", False)
    sink = case.get("sink")
    profile = case.get("profile", "workflow")
    if not isinstance(strict, bool):
        raise InputError("'strict' is true or false", place, code="wrong-type")
    if not isinstance(profile, str) or not isinstance(sink, str | None):
        raise InputError("'profile' and 'sink' are names", place, code="wrong-type")
    return _render_template(
        case["template"],
        {} if values is None else require_mapping(values, place),
        profile,
        sink,
        strict=strict,
        env=None if env is None else require_env(env, place),
    )


@contextmanager
def _open_cases(path: str) -> Iterator[BinaryIO]:
    if path == "-":
        yield sys.stdin.buffer
        return
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed below; reading errors belong to the reader
    except OSError as error:
        what = f"this file cannot be read: {error.strerror}"
        raise InputError(what, path, "check the path", code="no-file") from None
    except ValueError:
        raise InputError(
            "this is not a path", fix="remove the NUL character", code="no-file"
        ) from None
    with file:
        yield file


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress warnings on standard error: there may be ten thousand cases."""
    import logging

    log = logging.getLogger("plait.template")
    before = log.disabled
    log.disabled = True
    try:
        yield
    finally:
        log.disabled = before
