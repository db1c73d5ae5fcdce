"""Read `capture_outputs` of setup: names for parts of the outputs of its steps."""

from __future__ import annotations

from plait.core.digests import json_digest
from plait.core.documents import nodes
from plait.core.records import replace
from plait.program.capture import OutputPart
from plait.program.step_list import StepList as Steps
from plait.program.step_list import join_fingerprints, step_list
from plait.schema import Fields
from plait.scope import Scope


def add_setup_captures(steps: Steps, fields: Fields) -> Steps:
    """Setup with the captures of `capture_outputs`, which have no problems."""
    wanted: dict[int, list[OutputPart]] = {}
    for name, node in fields.entries("capture_outputs"):
        at, extract = parse_output_part(name, node, fields.scope)
        wanted.setdefault(at, []).append(extract)
    works = [
        replace(
            work,
            output_parts=tuple(wanted[at]),
            fingerprint=join_fingerprints(
                [work.fingerprint, json_digest([repr(one) for one in wanted[at]])]
            ),
        )
        if at in wanted and work.action is not None
        else work
        for at, work in enumerate(steps.steps)
    ]
    return step_list(steps.name, works, kind=steps.kind, title=steps.title, policy=steps.policy)


def parse_output_part(name: str, node: nodes.Node, scope: Scope) -> tuple[int, OutputPart]:
    if not isinstance(node, nodes.Mapping):
        at = node.data()
        return at if isinstance(at, int) else 0, OutputPart(name)
    fields = Fields("captured", node, scope)
    default = fields.get("default")
    return fields.integer("command_index") or 0, OutputPart(
        name,
        fields.text("source") or "stdout",
        fields.text("pattern"),
        fields.text("json_path"),
        fields.integer("max_size") or 1 << 20,
        None if default is None else default.data(),
        default is not None,
        fields.text("multiline") or "preserve",
    )
