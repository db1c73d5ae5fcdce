"""`capture_outputs` of setup: names for parts of what its steps print."""

from __future__ import annotations

from collections.abc import Iterator

from plait.documents import nodes
from plait.engine.operators import OPERATORS, RefusedError
from plait.errors import InputError, Problem
from plait.flows.format import Said
from plait.flows.parts import digest
from plait.records import replace
from plait.scope import Scope
from plait.steps.extract import Extracting, ExtractOutput
from plait.steps.sequence import Sequence as Steps
from plait.steps.sequence import joined, sequence


def with_extracts(steps: Steps, said: Said) -> Steps:
    """Setup, with the names of `capture_outputs`; InputError if one names a step that is not there."""
    wanted: dict[int, list[ExtractOutput]] = {}
    problems: list[Problem] = []
    for name, node in said.entries("capture_outputs"):
        at, extract = _extract(name, node, said.scope)
        if at >= len(steps.steps) or steps.steps[at].action is None:
            what = f"'{name}' is to be the output of step {at}, and setup has {len(steps.steps)} steps"
            problems.append(
                Problem(
                    what,
                    node.span if isinstance(node, nodes.Scalar) else said.span("capture_outputs"),
                    "count from 0",
                    code="wrong-type",
                )
            )
        problems += _bad_pattern(extract, node)
        wanted.setdefault(at, []).append(extract)
    if problems:
        raise InputError.together(problems)
    works = [
        replace(
            work,
            action=Extracting(work.action, tuple(wanted[at])),
            fingerprint=joined([work.fingerprint, digest([repr(one) for one in wanted[at]])]),
        )
        if at in wanted and work.action is not None
        else work
        for at, work in enumerate(steps.steps)
    ]
    return sequence(steps.name, works, kind=steps.kind, title=steps.title, policy=steps.policy)


def _extract(name: str, node: nodes.Node, scope: Scope) -> tuple[int, ExtractOutput]:
    if not isinstance(node, nodes.Mapping):
        at = node.data()
        return at if isinstance(at, int) else 0, ExtractOutput(name)
    said = Said("captured", node, scope)
    default = said.get("default")
    return said.whole("command_index") or 0, ExtractOutput(
        name,
        said.text("source") or "stdout",
        said.text("pattern"),
        said.text("json_path"),
        said.whole("max_size") or 1 << 20,
        None if default is None else default.data(),
        default is not None,
        said.text("multiline") or "preserve",
    )


def _bad_pattern(extract: ExtractOutput, node: nodes.Node) -> Iterator[Problem]:
    span = node.entries[0][0].span if isinstance(node, nodes.Mapping) else node.span
    if extract.pattern is not None:
        try:
            OPERATORS["regex"].build(extract.pattern)
        except RefusedError as refused:
            yield refused.problem(span, begin=f"the pattern of '{extract.name}' is")
