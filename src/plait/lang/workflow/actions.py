"""Compile the command of a step to an action."""

from __future__ import annotations

from plait import schema
from plait.core.digests import json_digest
from plait.core.documents import nodes
from plait.core.hints import TYPE_CHECKING, Literal
from plait.core.records import replace
from plait.core.values import Json
from plait.lang.common import (
    agent_limits,
    parse_interpreter,
    parse_on_empty,
    plain_field,
    required_template,
)
from plait.program.action_step import Action
from plait.program.actions.shell import ShellAction
from plait.program.foreach import CommandSource, Source, ValueSource, foreach
from plait.program.step_list import BlockAction, join_fingerprints
from plait.schema import Fields, text_template, to_template
from plait.template.template import Template

if TYPE_CHECKING:
    from plait.lang.workflow.compilation import Compilation, CompileContext
    from plait.program.actions.prompt import SessionOptions
    from plait.program.git_changes import ChangeCheck


def build_action(
    builder: Compilation, fields: Fields, context: CompileContext, strict: bool
) -> tuple[str, Action | None]:
    command = next((name for name in schema.ACTION_FIELDS if fields.has(name)), None)
    match command:
        case "shell":
            return "shell", _shell(
                fields, required_template(fields, "shell"), parse_interpreter(fields), strict
            )
        case "test":
            inner = fields.child("test")
            script = (
                required_template(fields, "test")
                if inner is None
                else required_template(inner, "command")
            )
            return "shell", _shell(fields, script, "sh", strict)
        case "tool":
            return "tool", _tool(builder, fields, strict)
        case "agent" | "claude":
            return "agent", _agent(builder, fields, command, strict)
        case "prompt":
            return "prompt", _prompt(fields, strict)
        case "http":
            return "http", _http(fields, strict)
        case "write_file":
            return "write_file", _write_file(fields, strict)
        case "foreach":
            return "foreach", _foreach(builder, fields, context, strict)
        case "use":
            return "block", _use(builder, fields, context, strict)
        case "workflow":
            from plait.lang.workflow.subworkflow import build_subworkflow

            return "workflow", build_subworkflow(builder, fields, strict)
    return "validate", None


def _shell(
    fields: Fields, script: Template, shell: Literal["sh", "dash", "bash"], strict: bool
) -> ShellAction:
    return ShellAction(script, shell, strict, is_title=_is_title(script, fields))


def _is_title(template: Template, fields: Fields) -> bool:
    """Is the filled text the title of the step?"""
    return bool(template.placeholders) and not (fields.has("name") or fields.has("id"))


def _tool(builder: Compilation, fields: Fields, strict: bool) -> Action:
    from plait.program.actions.tool import ToolAction

    template = required_template(fields, "tool")
    named = fields.text("tool") or ""
    if template.placeholders:
        return ToolAction(template, fields.template("params"), strict)
    builder.tools.setdefault(named, fields.span("tool"))
    return ToolAction(named, fields.template("params"), strict)


def _agent(builder: Compilation, fields: Fields, command: str, strict: bool) -> Action:
    from plait.program.actions.cli_agent import CLAUDE, CliAgentAction

    inner = fields.child(command)
    options = inner.entries("options") if inner else []
    model = (inner.get("model") if inner else None) or fields.get("model")
    if model is not None:
        options = [*options, ("model", model)]
    tool = (inner.text("tool") if inner else None) or CLAUDE
    builder.tools.setdefault(
        tool, inner.span("tool") if inner and inner.has("tool") else fields.span(command)
    )
    prompt = (
        required_template(fields, command) if inner is None else required_template(inner, "prompt")
    )
    return CliAgentAction(prompt, tool, _map_template(options), strict, _is_title(prompt, fields))


def _prompt(fields: Fields, strict: bool) -> Action:
    from plait.program.actions.prompt import PromptAction

    inner = fields.child("prompt")
    model = fields.text("model")
    if inner is None:
        return PromptAction(required_template(fields, "prompt"), model=model, strict=strict)
    return PromptAction(
        required_template(inner, "prompt"),
        inner.template("system"),
        inner.text("provider"),
        inner.text("model") or model,
        {name: value.data() for name, value in inner.entries("options")},
        strict,
        _session(fields, inner),
    )


def _session(fields: Fields, inner: Fields) -> SessionOptions | None:
    if not any(inner.has(name) for name in ("tools", "schema", "limits")):
        return None
    from plait.program.actions.prompt import SessionOptions

    output_schema = inner.get("schema")
    return SessionOptions(
        fields.text("name") or fields.text("id") or "agent",
        inner.strings("tools"),
        inner.strings("once"),
        output_schema.data() if isinstance(output_schema, nodes.Mapping) else None,
        agent_limits(inner),
        inner.integer("max_output_retries") or 0,
    )


def _foreach(builder: Compilation, fields: Fields, context: CompileContext, strict: bool) -> Action:
    node = fields.get("foreach")
    assert node is not None
    inner = fields.child("foreach")
    source: Source
    if inner is not None:
        script = inner.template("command")
        source = (
            ValueSource(required_template(inner, "items"), strict)
            if script is None
            else CommandSource(script, strict=strict)
        )
    elif isinstance(
        schema.select_kind(schema.fields_by_spelling("step")["foreach"].kind, node),
        schema.ShellText,
    ):
        source = CommandSource(to_template(node), strict=strict)
    else:
        source = ValueSource(to_template(node), strict)
    context = context.inside(fields)
    each = builder.steps("do", fields.items("do"), context, kind="item", title="each item")
    most = fields.get("max_items")
    source_data = ["foreach", node.data(), None if most is None else most.data(), builder.around]
    found = json_digest(
        [*source_data, *builder.head.used_in(node, most), *builder.reaching(context)]
    )
    parallel = fields.optional_flag("parallel")
    return foreach(
        source,
        each,
        fingerprint=join_fingerprints([found, each.fingerprint]),
        items_fingerprint=found,
        parallel=(fields.integer("parallel") or 1) if parallel is None else parallel,
        max_items=fields.integer("max_items"),
        continue_on_error=fields.flag("continue_on_error"),
        on_empty=parse_on_empty(fields),
    )


def _use(builder: Compilation, fields: Fields, context: CompileContext, strict: bool) -> Action:
    block = context.blocks.get(fields.text("use") or "")
    assert block is not None, "what uses a block that does not exist was refused"
    steps = builder.steps(
        "block",
        block.steps,
        replace(context.inside(fields), blocks=block.home),
        kind="block",
        title=block.name,
    )
    return BlockAction(steps, fields.template("with"), strict)


def parse_change_check(
    builder: Compilation, fields: Fields, older: Fields | None
) -> ChangeCheck | None:
    """The check of a step that requires a commit or names output files."""
    commits = fields.flag("commit_required") or bool(older and older.flag("commit_required"))
    outputs = {
        name: plain_field(value, "file_pattern") for name, value in fields.entries("outputs")
    }
    if not (commits or outputs):
        return None
    builder.watches = True
    from plait.program.git_changes import ChangeCheck

    return ChangeCheck(commits, fields.text("id") or "", outputs)


def _http(fields: Fields, strict: bool) -> Action:
    from plait.program.actions.http import HttpAction

    inner = fields.child("http")
    if inner is None:
        url = required_template(fields, "http")
        return HttpAction(url, strict=strict, is_title=_is_title(url, fields))
    url = required_template(inner, "url")
    expect = inner.get("expect")
    statuses: Json = [] if expect is None else expect.data()
    return HttpAction(
        url,
        inner.text("method"),
        {name: text_template(value) for name, value in inner.entries("headers")},
        inner.template("body"),
        tuple(statuses if isinstance(statuses, list) else [statuses]),
        strict=strict,
        allow_hosts=tuple(inner.strings("allow_hosts")),
        is_title=_is_title(url, fields),
    )


def _write_file(fields: Fields, strict: bool) -> Action:
    from plait.program.actions.write_file import WriteFileAction

    inner = fields.child("write_file")
    assert inner is not None
    mode = inner.get("mode")
    written = None if mode is None else str(mode.data())
    # YAML reads `mode: 0644` without quotes as a decimal number; its digits are octal.
    return WriteFileAction(
        required_template(inner, "path"),
        required_template(inner, "content"),
        inner.text("format") or "text",  # type: ignore[arg-type]  # one of the words of its table
        None if written is None else int(written, 8),
        inner.flag("create_dirs"),
        strict,
    )


def _map_template(entries: list[tuple[str, nodes.Node]]) -> Template | None:
    if not entries:
        return None
    keys = tuple((nodes.Scalar(name, node.span), node) for name, node in entries)
    return to_template(nodes.Mapping(keys, entries[0][1].span))
