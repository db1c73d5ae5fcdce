"""The flows of a project with their descriptions and parameters.

Files are read, never run; a file that cannot be read is listed with its problem.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from plait.core.errors import PlaitError
from plait.core.hints import TYPE_CHECKING
from plait.core.records import dataclass
from plait.core.values import Json, Undefined
from plait.lang.check import flow_files, kind_by_place
from plait.lang.flow_text import FlowText
from plait.lang.languages import detect_language, language_by_shape
from plait.lang.load import read_flow
from plait.lang.parameters import secret_names

if TYPE_CHECKING:
    from plait.lang.parameters import Parameter


@dataclass(frozen=True, slots=True)
class ListedFlow:
    path: str
    kind: str
    description: str
    parameters: Mapping[str, Parameter]
    problem: str = ""
    secrets: frozenset[str] = frozenset()
    """Names of parameters whose values nobody may show."""

    def record(self) -> dict[str, Json]:
        parameters = [
            {"name": one.name, "type": one.type, "required": one.required}
            | ({"description": one.description} if one.description else {})
            | ({} if isinstance(one.default, Undefined) else {"default": one.default})
            | ({"choices": list(one.choices)} if one.choices else {})
            for one in self.parameters.values()
        ]
        return {
            "file": self.path,
            "kind": self.kind,
            "description": self.description,
            "parameters": parameters,
            **({"problem": self.problem} if self.problem else {}),
        }


def find_flows(project: str) -> Iterator[ListedFlow]:
    """The flows below a folder, in the order of their paths; `.ai` holds only directives."""
    try:
        files = flow_files([project])
    except PlaitError:  # there is no file that could be one
        return
    for file in files:
        kind = kind_by_place(file)
        below_ai = f"{os.sep}.ai{os.sep}" in file
        if kind not in (None, "directive") or (below_ai and kind is None):
            continue
        shown = os.path.relpath(file)
        try:
            source = FlowText.read(file)
            if kind is None and language_by_shape(source.document) is None:
                continue
        except PlaitError:
            continue  # a file of something else; `plait check` names its problems
        try:
            yield list_flow(source, shown)
        except PlaitError:
            language = detect_language(source).kind
            yield ListedFlow(shown, language, "", {}, f"has problems: plait check {shown}")


def list_flow(source: FlowText, path: str) -> ListedFlow:
    """One flow; PlaitError if its file has problems."""
    language = detect_language(source)
    flow = read_flow(source)
    description = getattr(flow, "description", None)
    if description is None:
        node = getattr(source.document, "get", lambda _: None)("description")
        description = "" if node is None else str(node.data())
    secrets = frozenset() if language.kind == "directive" else secret_names(source.document)
    return ListedFlow(
        path,
        language.kind,
        " ".join(description.split()),
        flow.parameters,
        secrets=secrets & flow.parameters.keys(),
    )
