"""The public functions of `plait`, each a few lines over the packages below.

Imports are inside the functions, so that `import plait` and `plait --version` load only what they
use.

"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from os import PathLike

from plait.app.toolbox import toolbox
from plait.core.hints import TYPE_CHECKING
from plait.core.records import dataclass
from plait.core.values import Json

if TYPE_CHECKING:
    from plait.adapters.process.process_spec import ProcessResult
    from plait.core.source import Source
    from plait.scope import Scope
    from plait.template.shell.binding import BoundScript
    from plait.template.shell.places import Dialect
    from plait.template.template import Template

MAX_CACHED = 1 << 16
Values = "Mapping[str, Json] | Scope"


@dataclass(frozen=True, slots=True)
class ShellResult:
    """What a shell printed and how it ended; `shown` is the command as a person would write it."""

    stdout: str
    stderr: str
    exit_code: int
    duration: float
    shown: str

    @property
    def success(self) -> bool:
        return self.exit_code == 0


def compile(template: Json, *, profile: str = "workflow", source: Source | None = None) -> Template:
    """Return a template that can be rendered many times: `.render(values)`, `.placeholders`."""
    from plait.scope import Scope
    from plait.template.template import compile_template

    return compile_template(template, profile, source=source, lookup_of=Scope.of)


def render(
    template: Json,
    values: Mapping[str, Json] | Scope | None = None,
    *,
    profile: str = "workflow",
    strict: bool = False,
    env: Mapping[str, str] | None = None,
) -> Json:
    """Fill a template: a string, or every string of a list or map."""
    compiled = _compile_cached(template, profile)
    if values is None:
        values = {}
    if strict is False and env is None:
        return compiled.render(values)  # a call without keywords is faster
    return compiled.render(values, strict=strict, env=env)


def _compile_cached(template: Json, profile: str) -> Template:
    """Return a template from the cache, if it is small enough to be cached."""
    if not isinstance(profile, str):
        return compile(template, profile=profile)  # `compile` reports the error
    if isinstance(template, str):
        known = _compile_text if len(template) <= MAX_CACHED else compile
        return known(template, profile=profile)
    import marshal

    try:
        key = marshal.dumps(
            template, 2
        )  # equal trees have equal bytes, and different trees have not
    except ValueError:  # types other than those of JSON: `compile` reports them
        return compile(template, profile=profile)
    return (
        _compile_tree(key, profile)
        if len(key) <= MAX_CACHED
        else compile(template, profile=profile)
    )


@lru_cache(maxsize=512)
def _compile_text(template: str, profile: str) -> Template:
    return compile(template, profile=profile)


@lru_cache(maxsize=128)
def _compile_tree(key: bytes, profile: str) -> Template:
    import marshal

    return compile(marshal.loads(key), profile=profile)


def render_to(
    sink: str,
    template: Json,
    values: Mapping[str, Json] | Scope,
    *,
    profile: str = "workflow",
    strict: bool = False,
    env: Mapping[str, str] | None = None,
) -> Json:
    """Fill a template for one destination: see `plait.template.sinks`."""
    from plait.template import sinks

    sink = sinks.sink_named(sink)
    if sink == "argv" and isinstance(template, list):
        templates = [compile(word, profile=profile) for word in template]
        return sinks.render_argv(templates, values, strict=strict, env=env)
    compiled = compile(template, profile=profile)
    match sink:
        case "value":
            return compiled.render(values, strict=strict, env=env)
        case "argv":
            return sinks.render_words(compiled, values, strict=strict, env=env)
        case "shell":
            from plait.template.shell.script import bind_shell

            return bind_shell(compiled, values, strict=strict, env=env).shown
        case _:
            put = {
                "text": sinks.render_text, "json": sinks.render_json, "url": sinks.render_url,
                "header": sinks.render_header, "env": sinks.render_env,
            }[sink]  # fmt: skip
            return put(compiled, values, strict=strict, env=env)


def sh(
    template: str,
    values: Mapping[str, Json] | Scope | None = None,
    *,
    shell: str = "sh",
    cwd: str | PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    strict: bool = False,
) -> ShellResult:
    """Run shell text whose values are bound to variables, never pasted into the text.

    After a timeout the `ended` of the ProcessError has the output until then.
    """
    from plait.adapters.process.process_spec import ProcessResult
    from plait.core.errors import ProcessError

    bound = bind_script(template, values, shell=shell, strict=strict)
    try:
        return _shell_result(_in_shell(bound, shell, cwd, env, timeout), bound)
    except ProcessError as error:
        if isinstance(error.ended, ProcessResult):
            error.ended = _shell_result(error.ended, bound)
        raise


def _shell_result(finished: ProcessResult, bound: BoundScript) -> ShellResult:
    return ShellResult(
        finished.stdout.decode("utf-8", "surrogateescape"),
        finished.stderr.decode("utf-8", "surrogateescape"),
        finished.exit_code,
        finished.duration,
        bound.shown,
    )


def sh_through(
    template: str,
    values: Mapping[str, Json] | Scope | None = None,
    *,
    shell: str = "sh",
    cwd: str | PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    strict: bool = False,
) -> int:
    """Run shell text like `sh`, on the standard streams of this process; no output is kept."""
    bound = bind_script(template, values, shell=shell, strict=strict)
    return _in_shell(bound, shell, cwd, env, timeout, passthrough=True).exit_code


def _in_shell(
    bound: BoundScript,
    shell: str,
    cwd: str | PathLike[str] | None,
    env: Mapping[str, str] | None,
    timeout: float | None,
    *,
    passthrough: bool = False,
) -> ProcessResult:
    from plait.adapters.process.process import run_shell

    _require_run_options(cwd, env, timeout)
    environment = dict(os.environ) if env is None else env
    return run_shell(
        bound, shell=shell, cwd=cwd, env=environment, timeout=timeout, passthrough=passthrough
    )


def _require_run_options(cwd: object, env: object, timeout: object) -> None:
    from os import PathLike

    from plait.core.errors import InputError

    wrong = {
        "cwd is a path": cwd is None or isinstance(cwd, str | PathLike),
        "env is a map of text to text": env is None
        or (
            isinstance(env, Mapping)
            and all(isinstance(name, str) and isinstance(value, str) for name, value in env.items())
        ),
        "timeout is a number of seconds above 0": timeout is None
        or (isinstance(timeout, int | float) and not isinstance(timeout, bool) and timeout > 0),
    }
    for rule, kept in wrong.items():
        if not kept:
            raise InputError(rule, fix="look at help(plait.sh)", code="wrong-type")


def bind_script(
    template: str,
    values: Mapping[str, Json] | Scope | None = None,
    *,
    shell: str = "sh",
    strict: bool = False,
) -> BoundScript:
    """Return the script that `sh` would run, and the environment that carries its values."""
    from plait.core.errors import InputError, closest_name
    from plait.template.shell.script import bind_shell

    dialects: dict[str, Dialect] = {"sh": "sh", "dash": "sh", "bash": "bash"}
    if shell not in dialects:
        guess = closest_name(str(shell), dialects)
        raise InputError(
            f"there is no shell '{shell}' here",
            fix=(f"did you mean '{guess}'? " if guess else "") + "shells: sh, dash, bash",
            code="unknown-shell",
        )
    if not isinstance(template, str):
        raise InputError("shell text is a string", fix="pass one string", code="wrong-type")
    return bind_shell(
        compile(template), {} if values is None else values, strict=strict, dialect=dialects[shell]
    )


def resolve_prompt(text: str | None, inputs: Mapping[str, Json] | None) -> str | None:
    """Fill inputs into a prompt; every missing variable is reported at once."""
    from plait.template.sinks import resolve

    return resolve(text, inputs)


def escape_shell_value(value: Json) -> str:
    """Quote a value as a person would, to show a command.  The result is not for running."""
    from plait.template.sinks import quote_for_display

    return quote_for_display(value)


def matches(document: Json, condition: Json) -> bool:
    """Does a document meet a condition?"""
    from plait.template.conditions import matches as evaluate

    return evaluate(document, condition)


def call(
    tool_id: str,
    params: Mapping[str, Json] | None = None,
    *,
    project: str | PathLike[str] | None = None,
    dry_run: bool = False,
) -> dict[str, Json]:
    """Call a tool by its id; return the envelope of its result, or of what a call would do.

    `data` is the unmasked result of the tool: mask secrets before you print it.
    """
    from plait.tools import call as steps
    from plait.tools.chain import FLOW

    tools = toolbox(project)
    if tools.chains.get(tool_id).primitive == FLOW:
        return _call_flow(tool_id, params or {}, project, dry_run=dry_run)
    if dry_run:
        return steps.plan_call(tools, tool_id, params or {})
    return steps.call_tool(tools, tool_id, params or {}, in_clear=True).record()


def _call_flow(
    tool_id: str, params: Mapping[str, Json], project: str | PathLike[str] | None, *, dry_run: bool
) -> dict[str, Json]:
    from plait.app import runs as flows

    where = None if project is None else os.fspath(project)
    if dry_run:
        shown = flows.plan_flow_call(tool_id, params, project=where)
        if (fatal := next((one for one in shown if one.fatal), None)) is not None:
            raise flows.would_fail_error(fatal.fails)
        return {
            "status": "validation_passed",
            "item_id": tool_id,
            "steps": [{"path": one.path, "kind": one.kind, "shown": one.shown} for one in shown],
        }
    return flows.envelope(tool_id, flows.call_flow(tool_id, params, project=where))
