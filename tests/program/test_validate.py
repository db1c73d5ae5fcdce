"""Check, complete, check again: how often, with which names, and what counts as complete."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core.json_schema import is_schema
from plait.core.values import Json
from plait.engine.outcome import Failed, StepError, Succeeded
from plait.engine.perform import StepContext
from plait.program.validate import Validation, parse_validation
from program.fakes import (
    Acting,
    FakeServices,
    failing,
    failure_of,
    new_run,
    performed,
    saying,
    step,
    steps,
    text_of,
)


def test_what_a_check_printed_is_without_the_newlines_at_its_end() -> None:
    assert parse_validation("all is well\n\n").record(1)["raw_output"] == "all is well"
    assert parse_validation('{"completion": 5}\n').record(1)["raw_output"] == '{"completion": 5}'


def checks(*answers: Json) -> Acting:
    """A check that says one thing after the other, the last again and again."""
    left = list(answers)

    def answer(_: object) -> Json:
        result = left.pop(0) if len(left) > 1 else left[0]
        return result if isinstance(result, str) else json.dumps(result)

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


@pytest.mark.parametrize(
    ("percentages", "threshold", "attempts", "checked", "mended", "complete"), LOOPS
)
def test_a_check_is_repeated_after_each_attempt_to_complete(
    percentages: list[float],
    threshold: float,
    attempts: int,
    checked: int,
    mended: int,
    complete: bool,
) -> None:
    check, mend = checks(*({"completion_percentage": one} for one in percentages)), Acting()
    made = validated(check, mend, threshold=threshold, attempts=attempts)
    outcome = performed(step("a", Acting(), validation=made))
    assert (len(check.ran), len(mend.ran)) == (checked, mended)
    assert isinstance(outcome, Succeeded if complete else Failed)


def test_what_stays_incomplete_fails_with_what_is_missing() -> None:
    check = checks({"completion_percentage": 40.5, "missing": ["tests", "docs"]})
    failure = failure_of(performed(step("a", Acting(), validation=validated(check))))
    assert failure.message == "only 40.5 % complete, 100 % required; missing: tests, docs"
    assert failure.kind == "incomplete"


def test_what_stays_incomplete_may_be_allowed() -> None:
    made = validated(checks({"completion": 40}), fails=False)
    assert isinstance(performed(step("a", Acting(), validation=made)), Succeeded)


def test_the_steps_that_complete_know_what_the_check_found() -> None:
    found = {
        "completion_percentage": 50,
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
    assert isinstance(outcome, Succeeded)
    assert outcome.value["output"] == '50 incomplete ["x"] 1 high 1 | 100'


def test_a_result_may_be_in_a_file() -> None:
    fakes = FakeServices(files={"result.json": b'{"completion_percentage": 100}'})
    made = validated(checks("whatever"), result_file=text_of("${name}.json"))
    outcome = performed(step("a", Acting(), validation=made), new_run(fakes), {"name": "result"})
    assert isinstance(outcome, Succeeded)


def test_a_result_file_that_is_not_there_fails_the_step() -> None:
    made = validated(checks("whatever"), result_file=text_of("none.json"))
    assert failure_of(performed(step("a", Acting(), validation=made))).kind == "refused"


STALE = b'{"completion_percentage": 100}'
FILES = [
    # before    the check writes                       fails?   completion in the end
    (STALE,     None,                                  False,   100),
    (STALE,     None,                                  True,    0),      # left behind by an earlier check
    (None,      None,                                  True,    0),
    (STALE,     b'{"completion_percentage": 70}',      True,    70),     # it failed, and printed a result
    (None,      b'{"completion_percentage": 70}',      True,    70),
    (STALE,     b'{"missing": ["docs"]}',              True,    0),
    (STALE,     b'{"completion_percentage": 70}',      False,   70),
]  # fmt: skip


@pytest.mark.parametrize(("before", "written", "fails", "completion"), FILES)
def test_a_file_that_a_failed_check_did_not_write_does_not_hide_its_failure(
    before: bytes | None, written: bytes | None, fails: bool, completion: int
) -> None:
    fakes = FakeServices(files={} if before is None else {"r.json": before})

    def check(ctx: StepContext) -> Json:
        if written is not None:
            fakes.files["r.json"] = written
        return failing().run(ctx) if fails else ""

    made = validated(Acting(check), result_file=text_of("r.json"), fails=False)
    flow = steps(
        step("a", Acting(), validation=made), step("b", saying("${validation.completion}"))
    )
    outcome = performed(flow, new_run(fakes))
    assert isinstance(outcome, Succeeded)
    assert outcome.value["output"] == completion


def test_a_failed_check_that_writes_the_same_result_again_has_written_it(tmp_path: Path) -> None:
    class Disk(FakeServices):
        def read(self, path: str, *, directory: str) -> bytes:
            return (Path(directory) / path).read_bytes()

    file = tmp_path / "r.json"
    file.write_bytes(b'{"completion_percentage": 70}')
    os.utime(file, ns=(1, 1))

    def check(ctx: StepContext) -> Json:
        file.write_bytes(file.read_bytes())
        return failing().run(ctx)

    made = validated(Acting(check), result_file=text_of("r.json"))
    outcome = performed(
        step("a", Acting(), validation=made), new_run(Disk()), directory=str(tmp_path)
    )
    assert failure_of(outcome).message == "only 70 % complete, 100 % required"


UNKEPT = [
    # who checks   the message                   complete?
    ("shell",      "all tests pass",             True),      # that it ended well is enough
    ("shell",      "{}",                         True),
    ("agent",      "I could not look.",          False),     # an agent always ends well
    ("agent",      "",                           False),
    ("agent",      "{}",                         False),
    ("agent",      '{"status": "complete"}',     True),
    ("prompt",     "[]",                         False),
    ("prompt",     '{"completion": 100}',        True),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "result", "complete"), UNKEPT)
def test_an_agent_that_checks_has_to_give_a_result(kind: str, result: str, complete: bool) -> None:
    check = steps(step("c", checks(result), kind=kind), name="check")
    outcome = performed(step("a", Acting(), validation=Validation(check)))
    if complete:
        assert isinstance(outcome, Succeeded)
    else:
        assert failure_of(outcome).message == NO_RESULT


@pytest.mark.parametrize("written", [b"", b"not JSON", b"[]", b"{}", b"{", b"\xff"])
def test_a_result_file_without_a_result_is_never_complete(written: bytes) -> None:
    made = validated(checks("fine"), result_file=text_of("r.json"))
    outcome = performed(
        step("a", Acting(), validation=made), new_run(FakeServices(files={"r.json": written}))
    )
    assert failure_of(outcome).message == NO_RESULT


SCHEMA = {
    "type": "object",
    "required": ["completion_percentage", "gaps"],
    "properties": {"gaps": {"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}}},
}
NOT_FIT = "the result of the check does not match expected_schema at {}"
NO_RESULT = "the check printed no result: expected is JSON with completion_percentage, a number from 0 to 100"
MISFITS: list[tuple[Json, bool, str]] = [
    # what the check printed                                failed?   why it is no result
    ('{"completion_percentage": 50}',                       False,    NOT_FIT.format("required")),
    ('{"completion_percentage": 50}',                       True,     NOT_FIT.format("required")),
    ('{"completion_percentage": 50, "gaps": []}',           False,    NOT_FIT.format("properties.gaps.type")),
    ('{"completion_percentage": 50, "gaps": {"HIDDEN": 1}}', False,
     NOT_FIT.format("properties.gaps.propertyNames.pattern")),
    ({"completion_percentage": 50, "gaps": {"\udcff": 1}},  False,
     NOT_FIT.format("properties.gaps.propertyNames.pattern")),
    ("all is well",                                         False,    NO_RESULT),
    ("[1]",                                                 False,    NO_RESULT),
]  # fmt: skip


@pytest.mark.parametrize(("output", "failed", "why"), MISFITS)
def test_a_result_that_does_not_fit_the_schema_that_is_expected_is_none(
    output: Json, failed: bool, why: str
) -> None:
    with pytest.raises(StepError) as caught:
        parse_validation(output, failed=failed, promised=True, schema=SCHEMA)
    assert (caught.value.failure.message, caught.value.failure.kind) == (why, "incomplete")


def test_a_result_that_fits_counts_and_a_check_that_failed_may_say_nothing() -> None:
    fit = '{"completion_percentage": 50, "gaps": {"a": 1}}'
    assert parse_validation(fit, schema=SCHEMA).completion == 50
    assert parse_validation(fit, failed=True, schema=SCHEMA).completion == 50
    assert parse_validation("it crashed", failed=True, schema=SCHEMA).completion == 0


def test_a_step_whose_check_gives_another_result_than_is_expected_fails() -> None:
    made = validated(checks({"completion_percentage": 100}), schema=SCHEMA)
    failure = failure_of(performed(step("a", Acting(), validation=made)))
    assert failure.message == NOT_FIT.format("required")


SCHEMAS = [({}, True), (SCHEMA, True), ({"type": "objct"}, False), ({"required": "a"}, False),
           ({"$ref": "https://example.org/schema"}, False)]  # fmt: skip


@pytest.mark.parametrize(("schema", "expected"), SCHEMAS)
def test_a_schema_that_cannot_be_used_is_known_before_a_check(schema: Json, expected: bool) -> None:
    assert is_schema(schema) is expected


RESULTS: list[tuple[Json, bool, float, str]] = [
    # what it printed                         failed?   completion  status
    ('{"completion_percentage": 80}',         False,    80,         "complete"),
    ('{"completion_percentage": 75}',         False,    75,         "incomplete"),
    ('{"completion": 75, "status": null}',    False,    75,         "incomplete"),
    ('{"completion": 90}',                    True,     90,         "complete"),
    ('{"completion": 75, "status": "x"}',     False,    75,         "x"),
    ({"completion": 10},                      False,    10,         "incomplete"),
    ('{"status": "incomplete"}',              False,    0,          "incomplete"),
    ('{"status": "complete"}',                False,    100,        "complete"),
    ('{}',                                    True,     0,          "failed"),
    ("all tests pass",                        False,    100,        "complete"),
    ("2 tests fail",                          True,     0,          "failed"),
    (None,                                    True,     0,          "failed"),
]  # fmt: skip


@pytest.mark.parametrize(("output", "failed", "completion", "status"), RESULTS)
def test_what_a_check_says(output: Json, failed: bool, completion: float, status: str) -> None:
    found = parse_validation(output, failed=failed, threshold=80)
    assert (found.completion, found.status) == (completion, status)


UNREADABLE = [
    "{", "[1", '{"completion": "most"}', '{"completion": true}', '{"completion": NaN}', '{"completion": 1e999}',
    '{"completion": -1}', '{"completion": 101}', '{"completion": 1' + "0" * 400 + "}",
]  # fmt: skip


@pytest.mark.parametrize("output", UNREADABLE)
def test_a_result_that_cannot_be_read_is_never_complete(output: str) -> None:
    with pytest.raises(StepError, match="the check printed no result"):
        parse_validation(output)


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
        found = parse_validation(output, failed=failed)
    except StepError:
        return None
    assert found.record(1)["completion"] == found.completion
    return found.completion


def test_a_check_that_fails_is_not_complete() -> None:
    failure = failure_of(
        performed(step("a", Acting(), validation=validated(failing("2 tests fail"))))
    )
    assert failure.message == "only 0 % complete, 100 % required"


def test_a_step_may_only_validate() -> None:
    check = checks({"completion": 100})
    assert isinstance(performed(step("a", None, validation=validated(check))), Succeeded)
    assert len(check.ran) == 1
