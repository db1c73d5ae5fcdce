"""Check, complete, check again: how often, with which names, and what counts as complete."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.run.outcome import Done, Failed, StepError
from plait.steps.validate import Validation, read_result
from plait.values import Json
from steps.fakes import (
    Acting,
    FakeHands,
    failing,
    failure_of,
    new_run,
    performed,
    saying,
    step,
    steps,
    text_of,
)


def checks(*answers: Json) -> Acting:
    """A check that says one thing after the other, the last again and again."""
    left = list(answers)

    def answer(_: object) -> Json:
        said = left.pop(0) if len(left) > 1 else left[0]
        return said if isinstance(said, str) else json.dumps(said)

    return Acting(answer)


def validated(check: Acting, mend: Acting | None = None, **fields: Json) -> Validation:
    on_incomplete = steps(step("m", mend, capture="mended"), name="on_incomplete") if mend else None
    return Validation(steps(step("c", check), name="check"), on_incomplete=on_incomplete, **fields)


LOOPS = [
    # what the check says, in turn      threshold   attempts   checks   mends   complete?
    ([100],                             100,        2,         1,       0,      True),
    ([50, 100],                         100,        2,         2,       1,      True),
    ([50, 70, 100],                     100,        2,         3,       2,      True),
    ([50, 70, 90, 100],                 100,        2,         3,       2,      False),
    ([90],                              80,         2,         1,       0,      True),
    ([80],                              80,         2,         1,       0,      True),
    ([79.9],                            80,         1,         2,       1,      False),
    ([0],                               100,        0,         1,       0,      False),
]  # fmt: skip


@pytest.mark.parametrize(("said", "threshold", "attempts", "checked", "mended", "complete"), LOOPS)
def test_a_check_is_repeated_after_each_attempt_to_complete(
    said: list[float], threshold: float, attempts: int, checked: int, mended: int, complete: bool
) -> None:
    check, mend = checks(*({"completion_percentage": one} for one in said)), Acting()
    made = validated(check, mend, threshold=threshold, attempts=attempts)
    outcome = performed(step("a", Acting(), validation=made))
    assert (len(check.ran), len(mend.ran)) == (checked, mended)
    assert isinstance(outcome, Done if complete else Failed)


def test_what_stays_incomplete_fails_with_what_is_missing() -> None:
    check = checks({"completion_percentage": 40.5, "missing": ["tests", "docs"]})
    failure = failure_of(performed(step("a", Acting(), validation=validated(check))))
    assert failure.message == "only 40.5 % complete, 100 % are wanted; missing: tests, docs"
    assert failure.kind == "incomplete"


def test_what_stays_incomplete_may_be_allowed() -> None:
    made = validated(checks({"completion": 40}), fails=False)
    assert isinstance(performed(step("a", Acting(), validation=made)), Done)


def test_the_steps_that_complete_know_what_the_check_found() -> None:
    found = {
        "completion_percentage": 50,
        "status": "incomplete",
        "missing": ["x"],
        "gaps": {"g": {"severity": "high"}},
    }
    mend = saying(
        "${validation.completion} ${validation.status} ${validation.missing:json} ${validation.missing_count} "
        "${validation.gaps.g.severity} ${validation.attempt_number}"
    )
    flow = steps(
        step("a", Acting(), validation=validated(checks(found, {"completion": 100}), mend)),
        step("b", saying("${mended} | ${validation.completion}")),
    )
    outcome = performed(flow)
    assert isinstance(outcome, Done)
    assert outcome.value["output"] == '50 incomplete ["x"] 1 high 1 | 100'


def test_a_result_may_be_in_a_file() -> None:
    hands = FakeHands(files={"result.json": b'{"completion_percentage": 100}'})
    made = validated(checks("whatever"), result_file=text_of("${name}.json"))
    outcome = performed(step("a", Acting(), validation=made), new_run(hands), {"name": "result"})
    assert isinstance(outcome, Done)


def test_a_result_file_that_is_not_there_fails_the_step() -> None:
    made = validated(checks("whatever"), result_file=text_of("none.json"))
    assert failure_of(performed(step("a", Acting(), validation=made))).kind == "refused"


RESULTS: list[tuple[Json, bool, float, str]] = [
    # what it printed                         failed?   completion  status
    ('{"completion_percentage": 75}',         False,    75,         "complete"),
    ('{"completion": 75, "status": "x"}',     False,    75,         "x"),
    ({"completion": 10},                      False,    10,         "complete"),
    ('{"status": "incomplete"}',              False,    0,          "incomplete"),
    ('{"status": "complete"}',                False,    100,        "complete"),
    ('{}',                                    True,     0,          "failed"),
    ("all tests pass",                        False,    100,        "complete"),
    ("2 tests fail",                          True,     0,          "failed"),
    (None,                                    True,     0,          "failed"),
]  # fmt: skip


@pytest.mark.parametrize(("output", "failed", "completion", "status"), RESULTS)
def test_what_a_check_says(output: Json, failed: bool, completion: float, status: str) -> None:
    found = read_result(output, failed=failed)
    assert (found.completion, found.status) == (completion, status)


UNREADABLE = [
    "{", "[1", '{"completion": "most"}', '{"completion": true}', '{"completion": NaN}', '{"completion": 1e999}',
    '{"completion": -1}', '{"completion": 101}', '{"completion": 1' + "0" * 400 + "}",
]  # fmt: skip


@pytest.mark.parametrize("output", UNREADABLE)
def test_a_result_that_cannot_be_read_is_never_complete(output: str) -> None:
    with pytest.raises(StepError, match="the check printed no result"):
        read_result(output)


documents = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["completion", "completion_percentage", "status", "missing"]), inner
        )
    ),
)


@given(output=st.text() | documents.map(json.dumps), failed=st.booleans())
def test_any_output_is_a_share_or_is_refused(output: str, failed: bool) -> None:
    assert 0 <= (completion_of(output, failed=failed) or 0) <= 100


def completion_of(output: str, *, failed: bool) -> float | None:
    try:
        found = read_result(output, failed=failed)
    except StepError:
        return None
    assert found.record(1)["completion"] == found.completion
    return found.completion


def test_a_check_that_fails_is_not_complete() -> None:
    failure = failure_of(performed(step("a", Acting(), validation=validated(failing("2 tests fail")))))
    assert failure.message == "only 0 % complete, 100 % are wanted"


def test_a_step_may_only_validate() -> None:
    check = checks({"completion": 100})
    assert isinstance(performed(step("a", None, validation=validated(check))), Done)
    assert len(check.ran) == 1
