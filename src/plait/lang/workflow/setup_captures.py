"""`capture_outputs` of setup: names for parts of what its steps print."""

from __future__ import annotations

from collections.abc import Iterator

from plait import schema as format
from plait.core.documents import nodes
from plait.core.errors import Problem
from plait.core.hints import Final
from plait.core.records import replace
from plait.lang.common import digest
from plait.program.extract import Extracting, ExtractOutput
from plait.program.step_list import Sequence as Steps
from plait.program.step_list import joined, sequence
from plait.schema import Said
from plait.scope import Scope
from plait.template.operators import OPERATORS, RefusedError


def with_extracts(steps: Steps, said: Said) -> Steps:
    """Setup, with the names of `capture_outputs`, of which there is nothing to say."""
    wanted: dict[int, list[ExtractOutput]] = {}
    for name, node in said.entries("capture_outputs"):
        at, extract = _extract(name, node, said.scope)
        wanted.setdefault(at, []).append(extract)
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


def capture_problems(said: Said) -> Iterator[Problem]:
    """Names for steps that are not there or print nothing, and patterns that cannot be read."""
    steps = said.items("steps")
    for name, node in said.entries("capture_outputs"):
        at, extract = _extract(name, node, said.scope)
        if said.has("steps") and not (at < len(steps) and _prints(steps[at])):
            what = f"'{name}' is to be the output of step {at}, and setup has {len(steps)} steps"
            where = node.span if isinstance(node, nodes.Scalar) else said.span("capture_outputs")
            yield Problem(what, where, "count from 0", code="wrong-type")
        yield from _bad_pattern(extract, node)


def _prints(step: nodes.Node) -> bool:
    """Does a step do anything but check?"""
    keys = {str(key.value) for key, _ in step.entries} if isinstance(step, nodes.Mapping) else set()
    return "validate" not in keys or any(name in keys for name in _COMMANDS)


_COMMANDS: Final = [name for one in format.COMMANDS for name in format.spelt("step")[one].spellings]


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
