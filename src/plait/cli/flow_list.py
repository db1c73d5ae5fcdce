"""The output of `plait run` without a file: the flows of a project, or the help of one."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping

from plait.app.flow_list import find_flows, list_flow
from plait.core.errors import shorten
from plait.core.hints import TYPE_CHECKING
from plait.core.values import Undefined, json_text
from plait.lang.flow_text import FlowText
from plait.views.terminal import cut, format_table, paint_for, width, write_json

if TYPE_CHECKING:
    from plait.lang.parameters import Parameter


def show_flows(project: str, *, as_json: bool) -> None:
    """Print the flows below a project."""
    flows = list(find_flows(project))
    if as_json:
        write_json([flow.record() for flow in flows])
        return
    if not flows:
        print(f"there is no flow in {cut(project, None)}\nwrite one:  plait new workflow hello")
        return
    paint, columns = paint_for(sys.stdout), width(sys.stdout)
    heads = [(flow.path, flow.kind, flow.problem or flow.description) for flow in flows]
    for flow, line in zip(flows, format_table(heads, columns), strict=True):
        print(paint(line, "red") if flow.problem else line)
        for row in _parameter_rows(flow.parameters):
            print(paint(cut(f"    -i {row}", columns), "dim"))
    print("its parameters and how to run it:  plait run FILE --help")


def flow_help(path: str) -> str:
    """The help of one flow: what it is for, its parameters, how to run it."""
    flow = list_flow(FlowText.read(path), path)
    given = "".join(f" -i {one.name}=…" for one in flow.parameters.values() if one.required)
    shown = shlex.quote(path)
    lines = [
        f"plait run {cut(path, None)}: {cut(flow.description or f'a {flow.kind}', None)}",
        "",
        f"  plait run {shown}{given}",
        f"  plait run {shown}{given} --dry-run",
        "",
        "parameters:" if flow.parameters else "it has no parameters",
        *(f"  -i {row}" for row in _parameter_rows(flow.parameters)),
        "",
        "options: plait run --help",
    ]
    return "\n".join(lines) + "\n"


def _parameter_rows(parameters: Mapping[str, Parameter]) -> Iterator[str]:
    rows = [
        (f"{one.name}=…", _kind(one), " ".join(one.description.split()))
        for one in sorted(parameters.values(), key=lambda one: not one.required)
    ]
    if rows:
        yield from format_table(rows, None)


def _kind(one: Parameter) -> str:
    kind = " or ".join(map(json_text, one.choices)) if one.choices else one.type
    if one.required:
        return f"{kind}, needed"
    return (
        kind
        if isinstance(one.default, Undefined)
        else f"{kind}, default {shorten(json_text(one.default), 40)}"
    )
