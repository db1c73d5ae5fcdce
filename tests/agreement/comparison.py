"""Compare what `plait check` reports about the names of a flow with what runs know."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random

from agreement.worlds import Place, Seen, performed
from agreement.writing import Writer
from plait.core.documents import parse
from plait.lang.workflow.check import check_workflow
from plait.lang.workflow.compose import compose

WORLDS = 10


@dataclass(frozen=True)
class Comparison:
    text: str
    places: int
    """The number of placeholders that were reached."""
    refused: int
    """The number of those whose name check refuses."""
    found: list[str]
    """Descriptions of the disagreements of check and runs."""


def compare_names(seed: int, folder: Path, *, enough: int) -> Comparison:
    """`enough`: the number of simulated runs that must reach a placeholder before its name counts as unknown."""
    writer = Writer(Random(seed))
    text = writer.flow()
    wrong = refused(text)
    seen = performed(text, writer.own, folder, range(WORLDS))
    last = WORLDS
    while last < 4 * enough and _is_open(seen, wrong, enough):
        performed(text, writer.own, folder, range(last, last + 30), seen)
        last += 30
    found = [
        f"{place}: '{seen.names[place]}' is refused, and a run knows it"
        for place in wrong & seen.known
    ]
    found += [
        f"{place}: '{seen.names[place]}' is accepted, and no run knows it"
        for place in seen.names.keys() - wrong - seen.begun
        if seen.times[place] >= enough
    ]
    return Comparison(text, len(seen.names), len(wrong & seen.names.keys()), sorted(found))


def refused(text: str) -> set[Place]:
    found = check_workflow(compose(parse(text, "flow.yaml"), "flow.yaml"))
    errors = [one.problem for one in found if one.severity == "error"]
    assert {one.code for one in errors} <= {"unknown-name"}, [str(one) for one in errors]
    return {one.place[1:] for one in errors}


def _is_open(seen: Seen, wrong: set[Place], enough: int) -> bool:
    return any(seen.times[place] < enough for place in seen.names.keys() - wrong - seen.begun)
