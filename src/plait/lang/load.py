"""Load a flow of any language: its text becomes a program with its inputs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from plait.core.hints import TYPE_CHECKING, Final
from plait.lang.flow_text import FlowText, Kind
from plait.lang.languages import LANGUAGES, detect_language
from plait.lang.loaded import LoadedFlow, LoadOptions
from plait.lang.parameters import parameters_schema

if TYPE_CHECKING:
    from plait.core.values import Json
    from plait.lang.languages import FlowFile

KEPT_TOOLS: Final = 64
"""The limit for cached flows that are called as tools; each is read once."""


def load_flow(
    source: FlowText, inputs: Mapping[str, Json] | None = None, options: LoadOptions | None = None
) -> LoadedFlow:
    """The program of a flow; InputError with everything that is wrong with it or its inputs."""
    options = options or LoadOptions()
    return read_flow(source, options.project).compile(inputs or {}, options)


def read_flow(source: FlowText, project: str | None = None) -> FlowFile:
    """What the file of a flow declares; a tool is read once."""
    if source.kind is None:
        return detect_language(source).read(source, project)
    return _read_tool(source.text, source.path, source.kind)


@lru_cache(maxsize=KEPT_TOOLS)
def _read_tool(text: str, path: str, kind: Kind) -> FlowFile:
    return LANGUAGES[kind].read(FlowText(text, path, kind=kind))


def input_schema(source: FlowText) -> dict[str, Json] | None:
    """The declared inputs of a flow that is called like a tool; None: it takes any."""
    schema = parameters_schema(read_flow(source).parameters)
    if schema is None and source.kind == "directive":
        return {"type": "object", "properties": {}, "additionalProperties": False}
    return schema
