"""The `write_file:` action: write one file below the project atomically.

With `format: json` or `yaml` the content is data: a value can neither end a string nor add a key.
Secrets are written as `***`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from plait.core.errors import InputError, PlaitError, Problem
from plait.core.hints import TYPE_CHECKING, Final, Literal, TypeAlias
from plait.core.records import dataclass, replace
from plait.core.values import (
    UNDEFINED,
    Json,
    contains_unknown,
    deep_copy,
    json_text,
    json_value,
    text,
    utf8,
)
from plait.engine.outcome import Failure, StepError
from plait.engine.perform import StepContext
from plait.engine.step import Plan
from plait.program.ports import Files
from plait.template.compiled import Piece, PlacedValue
from plait.template.nodes import ContextPlaceholder, Path, Text, placeholders
from plait.template.sinks import render_text
from plait.template.template import Leaf, Template

if TYPE_CHECKING:
    from plait.engine.plan_log import PlanLog
    from plait.scope import Scope

FileFormat: TypeAlias = Literal["text", "json", "yaml"]
AS_MAP: Final = "write it as a map instead of a text"


@dataclass(frozen=True, slots=True)
class WriteFileAction:
    """Writes one file; the output is its path."""

    path: Template
    content: Template
    format: FileFormat = "text"
    mode: int | None = None
    """The permissions; None: the default of new files, or those of the file that it replaces."""
    create_dirs: bool = False
    strict: bool = False

    def plan(self, ctx: StepContext) -> WritePlan:
        path = render_text(self.path, ctx.scope, strict=self.strict)
        _require_valid_path(path, self.path)
        return WritePlan("write_file", path, self)

    def execute(self, plan: Plan, ctx: StepContext) -> dict[str, Json]:
        path, data = plan.shown, self.render(ctx)
        ctx.run.services.get(Files).write(
            path, data, directory=ctx.directory, mode=self.mode, create_dirs=self.create_dirs
        )
        return {"output": path, "stderr": "", "exit_code": 0, "duration": 0.0}

    def render(self, ctx: StepContext) -> bytes:
        """Return the content of the file, with secrets masked."""
        return utf8(ctx.run.secrets.mask(self._render_content(ctx.scope)))

    def _render_content(self, scope: Scope) -> str:
        match self.format:
            case "text":
                return text(self.content.render(scope, strict=self.strict))
            case "json":
                return json.dumps(self._data(scope), ensure_ascii=False, indent=2) + "\n"
            case "yaml":
                return _as_yaml(self._data(scope))

    def _data(self, scope: Scope) -> Json:
        """The content as data: a tree, a single value, or a document text with values in it."""
        if isinstance(self.content.root, Leaf) and not _is_one_placeholder(self.content.root):
            if self.format == "json":
                return _parse_json(self.content.pieces(scope, strict=self.strict))
            return _parse_yaml(self.content)
        return deep_copy(self.content.render(scope, strict=self.strict))


@dataclass(frozen=True, slots=True)
class WritePlan(Plan):
    """Shows the size of the file if it is known."""

    def show(self, ctx: StepContext, log: PlanLog) -> Json:
        action: WriteFileAction = self.data
        is_unknown = _has_unknown(action.content, ctx.scope)
        size = "its size is not known yet" if is_unknown else f"{len(action.render(ctx))} bytes"
        return log.add(ctx, self.kind, f"{self.shown} ({size})")


def _has_unknown(content: Template, scope: Scope) -> bool:
    """Whether the content has a value that only a run knows."""
    return contains_unknown(content.render_checked(scope)) or any(
        isinstance(placeholder, ContextPlaceholder)
        and not placeholder.bare
        and placeholder.default is None
        and _is_missing(placeholder, scope)
        for leaf in content.leaves()
        for placeholder in placeholders(leaf.compiled.parts)
    )


def _is_missing(placeholder: ContextPlaceholder, scope: Scope) -> bool:
    asked = [alternative.origin for alternative in placeholder.alternatives]
    return all(isinstance(path, Path) and scope.lookup(path) is UNDEFINED for path in asked)


def _require_valid_path(path: str, template: Template) -> None:
    if path.strip() and "\0" not in path:
        return
    source = template.leaf.source
    raise InputError(
        "the path of the file is empty"
        if "\0" not in path
        else "the path of the file contains NUL",
        source.outer_span(0, len(source.text)),
        "check the values of its variables",
        code="bad-path",
    )


def _is_one_placeholder(leaf: Leaf) -> bool:
    parts = leaf.compiled.parts
    return len(parts) == 1 and not isinstance(parts[0], Text)


def content_problem(content: Template, format: FileFormat) -> Problem | None:
    """Return the problem of a content that can never be written in its format, whatever its values."""
    if format == "text" or not isinstance(content.root, Leaf) or _is_one_placeholder(content.root):
        return None
    source = content.leaf.source
    parts = content.leaf.compiled.parts
    if format == "yaml":
        try:
            _parse_yaml(content)
        except PlaitError as error:
            return replace(error.problems[0], where=source.outer_span(0, len(source.text)))
        return None
    samples: list[Piece] = [
        part.text if isinstance(part, Text) else PlacedValue(0, part) for part in parts
    ]
    try:
        _parse_json(samples)
    except StepError:
        return Problem(
            "the content is not JSON",
            source.outer_span(0, len(source.text)),
            AS_MAP,
            code="json-text",
        )
    return None


def _parse_json(pieces: Iterable[Piece]) -> Json:
    """Parse JSON text of the author. A placeholder is a whole value, or part of the string around
    it.
    """
    written: list[str] = []
    in_string = False
    for piece in pieces:
        if isinstance(piece, str):
            in_string = _ends_in_string(piece, in_string)
            written.append(piece)
        elif in_string:
            written.append(json_text(text(piece.value))[1:-1])
        else:
            written.append(json_text(piece.value))
    try:
        return json_value("".join(written))
    except (ValueError, RecursionError):
        raise StepError(Failure(f"the content is not JSON; {AS_MAP}", "refused")) from None


def _ends_in_string(piece: str, in_string: bool) -> bool:
    escaped = False
    for char in piece:
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = in_string
        elif char == '"':
            in_string = not in_string
    return in_string


def _parse_yaml(content: Template) -> Json:
    """Parse YAML text of the author. It must not have placeholders: only a tree shows where a value
    ends.
    """
    from plait.core.documents import parse

    if any(not isinstance(part, Text) for part in content.leaf.compiled.parts):
        raise InputError(
            "text with variables in it cannot be written as YAML: a value could change what it "
            "means",
            content.leaf.source.outer_span(0, len(content.leaf.source.text)),
            AS_MAP,
            code="yaml-text",
        )
    return parse(text(content.render({})), content.leaf.source.name).data()


def _as_yaml(value: Json) -> str:
    import yaml

    class Writer(yaml.SafeDumper):
        """Uses double quotes for characters that YAML takes for line breaks, so they survive."""

        def represent_str(self, data: str) -> yaml.ScalarNode:
            breaks = any(char in data for char in "\x85\u2028\u2029")
            return self.represent_scalar(
                "tag:yaml.org,2002:str", data, style='"' if breaks else None
            )

        def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - the shape of the library
            # no aliases: many readers do not know `&id001`
            return True

    Writer.add_representer(str, Writer.represent_str)
    written: str = yaml.dump(
        value, Dumper=Writer, allow_unicode=True, sort_keys=False, default_flow_style=False
    )
    return written
