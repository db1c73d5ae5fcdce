"""Steps after a repeated step are repeated as well, even if that run attempt was killed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plait.app.runs import RunObservers, plan_resume, resume_flow
from plait.core.errors import InputError
from plait.engine.events import EventRecord, ItemsReplayed, StepFinished
from plait.engine.stop import StopSignal
from plait.program import map_progress
from runs.stories import Place, new_place


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return new_place(tmp_path, monkeypatch)


def cut(place: Place, *command: str) -> None:
    """Perform a run attempt that a step kills if it finds the file `dies`."""
    place.write("dies", "")
    place.write("die.sh", DIE)
    assert place.plait(*command).returncode == -9
    (place.root / "dies").unlink()


DIES = "if [ -e dies ]; then sh die.sh; fi"
DIE = "kill -9 $(sed 's/.*\"pid\": *//; s/,.*//' .ai/state/runs/*/lock); sleep 60\n"
"""The lock of a run says who works on it."""


LIST = """\
steps:
- {id: a, shell: echo ONE, capture: said}
- {id: b, shell: 'echo b ${said} >> seen; DIES'}
- {id: c, shell: 'echo c ${said} >> seen'}
"""
ITEMS = """\
map:
  input: [x]
  id: ${item}
  steps:
  - {id: w1, shell: echo ONE, capture: said}
  - {id: w2, shell: 'echo w2 ${said} >> seen; DIES'}
  - {id: w3, shell: 'echo w3 ${said} >> seen'}
"""
PHASES = """\
setup: [{id: s, shell: echo ONE, capture: said}]
map:
  input: [x, y]
  id: ${item}
  max_parallel: 1
  steps: [{id: w, shell: 'echo ${item} ${said} >> seen; [ ${item} = x ] || { DIES; }'}]
reduce: [{id: r, shell: 'echo ${map.outputs} r ${said} >> seen'}]
"""


@pytest.mark.parametrize("flow", [LIST, ITEMS, PHASES])
def test_what_was_recorded_before_a_change_does_not_count_behind_it(
    place: Place, flow: str
) -> None:
    flow = flow.replace("DIES", DIES)
    run = place.done(flow).result.run
    place.write("flow.yaml", flow.replace("ONE", "TWO"))
    cut(place, "resume", run, "--accept-changes")
    before = place.text("seen")
    assert place.plait("resume", run).returncode == 0
    seen = place.text("seen")
    again = seen[len(before) :].splitlines()
    assert again, "what the killed life did not come to was remembered"
    assert "ONE" not in "".join(again)
    assert place.plait("resume", run).returncode == 0
    assert place.text("seen") == seen, "what is done is done"


def test_a_report_is_made_anew_after_a_retry_that_was_killed_in_it(place: Place) -> None:
    flow = """\
map:
  input: [a, b, c]
  id: ${item}
  steps: [{shell: '[ ${item} != b ] || [ -e mended ]'}]
reduce:
- {shell: 'DIES'}
- {shell: 'echo ok=${map.successful} failed=${map.failed} > report'}
""".replace("DIES", DIES)
    run = place.run(flow).result.run
    assert place.text("report") == "ok=2 failed=1\n"
    place.write("mended", "")
    cut(place, "retry", run, "--failed")
    assert place.plait("resume", run).returncode == 0
    assert place.text("report") == "ok=3 failed=0\n"


def test_many_items_of_an_earlier_selection_do_not_count(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(map_progress, "MANY", 800)
    many = map_progress.MANY + 50
    place.write("items.jsonl", "".join(f'{{"n": {n}, "g": {n % 2}}}\n' for n in range(2 * many)))
    flow = """\
map:
  input: items.jsonl
  filter: g == 0
  id: "${item.n}"
  max_parallel: 1  # or all others are done before the one that dies has begun
  steps:
  - {when: "${item.n} == 301", shell: 'DIES'}
reduce: [{write_file: {path: counts, content: "${map.successful}"}}]
""".replace("DIES", DIES)
    run = place.done(flow).result.run
    place.write("flow.yaml", flow.replace("g == 0", "g == 1"))
    cut(place, "resume", run, "--accept-changes")
    ran = place.resume(run)
    assert ran.result.counts["successful"] == many
    (reported,) = (event for event in ran.events if isinstance(event, ItemsReplayed))
    done = [
        event for event in ran.events if isinstance(event, StepFinished) and event.kind == "item"
    ]
    assert len(done) + reported.done.count(1) == many
    assert reported.done.count(1) == 150
    assert place.text("counts") == str(many)


ONCE = """\
steps:
- {id: a, shell: echo ONE}
- {id: b, once: true, shell: 'echo b >> seen; DIES; [ -e ok ] || [ ! -e fails ]'}
- {id: c, shell: '[ -e ok ]'}
""".replace("DIES", DIES)
ONCE_IN_ITEMS = """\
map:
  input: [x]
  id: ${item}
  steps: [{id: b, once: true, shell: 'echo b >> seen; DIES; [ -e ok ]'}]
""".replace("DIES", DIES)


@pytest.mark.parametrize(
    ("flow", "change", "command", "asked"),
    [
        (ONCE, "fails", ["resume"], "steps/b"),  # it had failed, and was begun again
        (ONCE, "ONE", ["resume", "--accept-changes"], "steps/b"),  # a step before it was done again
        (ONCE, "echo b", ["resume", "--accept-changes"], "steps/b"),  # its own text is another
        (ONCE_IN_ITEMS, "fails", ["retry", "--failed"], "map/item:x/b"),
    ],
)
def test_a_step_that_may_run_once_is_asked_about_when_it_was_begun_again(
    place: Place, flow: str, change: str, command: list[str], asked: str
) -> None:
    place.write("fails", "")
    if change != "fails":
        (place.root / "fails").unlink()
    run = place.run(flow).result.run
    if change != "fails":
        place.write("flow.yaml", flow.replace(change, f"{change}1"))
    cut(place, command[0], run, *command[1:])
    seen = place.text("seen")
    place.write("ok", "")
    dry = place.plait("resume", run, "--dry-run")
    assert "may run at most once: plait resume asks" in dry.stdout
    for flags in ([], ["--accept-changes"]):
        ended = place.plait("resume", run, *flags)
        assert ended.returncode != 0
        assert f"--repeat {asked}" in ended.stdout + ended.stderr
        assert place.text("seen") == seen
    assert place.plait("resume", run, "--done", asked).returncode == 0
    assert place.text("seen") == seen


# ── what the user says is done ───────────────────────────────────────────

SENT = """\
steps:
- {id: pre, shell: 'echo ONE >> seen'}
- {id: send, once: true, shell: 'echo SEND >> seen; DIES; echo 17', capture_output: n MORE}
- {id: after, shell: 'echo after ${n} ${n.exit_code} >> seen'}
""".replace("DIES", DIES)
SENT_IN_ITEMS = """\
map:
  input: [x]
  id: ${item}
  steps:
  - {id: pre, shell: 'echo ONE >> seen'}
  - {id: send, once: true, shell: 'echo SEND >> seen; DIES; echo 17', capture_output: n MORE}
  - {id: after, shell: 'echo after ${n} ${n.exit_code} >> seen'}
""".replace("DIES", DIES)


@pytest.mark.parametrize(
    ("flow", "path"), [(SENT, "steps/send"), (SENT_IN_ITEMS, "map/item:x/send")]
)
@pytest.mark.parametrize("also", ["", ", on_success: 'true'"])
def test_a_step_marked_done_stays_done_though_one_before_it_is_done_again(
    place: Place, flow: str, path: str, also: str
) -> None:
    flow = flow.replace(" MORE", also)
    path = f"{path}/run" if also else path
    place.write("flow.yaml", flow)
    cut(place, "run", "flow.yaml")
    place.write("flow.yaml", flow.replace("ONE", "TWO"))
    command = ("resume", "--accept-changes", "--done", path)
    shown = place.plait(*command, "--dry-run").stdout.splitlines()
    (line,) = (line for line in shown if line.startswith(f"{path}   "))
    assert line.endswith("(replayed)")
    assert place.plait(*command).returncode == 0
    assert place.text("seen").split("\n") == ["ONE", "SEND", "TWO", "after  0", ""]


@pytest.mark.parametrize(
    ("how", "given"),
    [("string", " "), ("number", " "), ("json", " "), ("lines", ""), ("boolean", "true ")],
)
@pytest.mark.parametrize(
    ("flow", "path", "also"),
    [
        (SENT, "steps/send", ""),
        (SENT, "steps/send/run", ", on_success: 'true'"),
        (SENT_IN_ITEMS, "map/item:x/send", ""),
    ],
)
def test_the_output_of_a_step_marked_done_is_empty_in_every_format(
    place: Place, flow: str, path: str, also: str, how: str, given: str
) -> None:
    place.write("flow.yaml", flow.replace(" MORE", f", capture_format: {how}{also}"))
    cut(place, "run", "flow.yaml")
    done = place.plait("resume", "--done", path)
    assert done.returncode == 0, done.stdout
    assert "taken as done: what it printed is not known, so 'n' is empty" in done.stdout
    assert place.text("seen").split("\n")[2] == f"after {given}0"


def test_a_done_mark_survives_a_run_attempt_that_does_not_come_to_its_step(
    place: Place,
) -> None:
    flow = """\
steps:
- {id: q, shell: 'echo q >> seen; test -e ok'}
- {id: send, once: true, shell: 'echo SEND >> seen'}
- {id: r, shell: 'echo r >> seen'}
"""
    run = place.run(flow).result.run
    assert place.resume(run, done=["steps/send"]).result.status == "failed"  # by q, again
    place.write("ok", "")
    assert place.resume(run).result.status == "done"
    assert place.text("seen").split() == ["q", "q", "q", "r"]


def test_a_done_mark_can_be_taken_back_until_it_counts(place: Place) -> None:
    flow = "steps: [{id: q, shell: 'test -e ok'}, {id: send, shell: 'echo SEND >> seen'}]\n"
    run = place.run(flow).result.run
    place.resume(run, done=["steps/send"])
    place.write("ok", "")
    with pytest.raises(InputError, match="is named with --repeat and with --done"):
        place.resume(run, done=["steps/send"], repeat=["steps/send"])
    assert place.resume(run, repeat=["steps/send"]).result.status == "done"
    assert place.text("seen") == "SEND\n"


def test_a_dry_run_refuses_the_answers_that_a_resumed_run_refuses(place: Place) -> None:
    run = place.run("steps: [{id: p, shell: 'true'}, {id: q, shell: 'false'}]\n").result.run
    answers: list[dict[str, Any]] = [{"repeat": ["steps/p"]}, {"done": ["q"]}]
    for answer in answers:
        with pytest.raises(InputError) as refused:
            place.resume(run, **answer)
        with pytest.raises(InputError) as dry:
            plan_resume(run, project=str(place.root), **answer)
        assert str(dry.value) == str(refused.value)
    assert "did you mean 'steps/q'?" in str(refused.value)
    repeated = place.plait("resume", run, "--dry-run", "--done", "steps/q").stdout.splitlines()
    assert repeated[-1] == "steps/q   shell   q   (replayed)"


def test_an_older_end_of_a_step_that_was_under_way_does_not_count(place: Place) -> None:
    flow = """\
map:
  input: [x]
  id: ${item}
  retry: {attempts: 3, initial_delay: 0.01}
  steps:
  - {id: b, shell: 'echo try >> tries; : > data; if [ $(wc -l < tries) = 2 ]; then DIES; fi; echo full > data'}
  - {id: c, shell: 'echo c >> cs; [ $(wc -l < cs) -gt 1 ]'}
reduce: [{shell: 'cat data > report'}]
""".replace("DIES", DIES)
    place.write("flow.yaml", flow)
    cut(place, "run", "flow.yaml")
    assert place.plait("resume").returncode == 0
    assert place.text("report") == "full\n"


def test_what_was_begun_with_another_text_is_done_also_if_the_old_text_is_back(
    place: Place,
) -> None:
    flow = "steps: [{id: a, shell: ': > data; DIES; echo ONE > data'}, {id: b, shell: '[ -e ok ]'}]"
    flow = flow.replace("DIES", DIES)
    run = place.run(flow).result.run
    place.write("flow.yaml", flow.replace("ONE", "TWO"))
    cut(place, "resume", run, "--accept-changes")
    place.write("flow.yaml", flow)
    place.write("ok", "")
    assert place.plait("resume", run).returncode == 0
    assert place.text("data") == "ONE\n"


def test_an_item_done_from_its_start_does_what_may_run_once_without_a_question(
    place: Place,
) -> None:
    flow = """\
map:
  input: [x]
  id: ${item}
  steps: [{id: b, once: true, shell: echo b >> seen}, {id: c, shell: '[ -e ok ]'}]
"""
    run = place.run(flow).result.run
    place.write("ok", "")
    assert place.plait("retry", run, "--failed", "--from-start").returncode == 0
    assert place.text("seen") == "b\nb\n"


def asked(place: Place, run: str) -> str:
    """What a resumed run asks about; nothing is done."""
    with pytest.raises(InputError) as caught:
        place.resume(run)
    return caught.value.what


def test_a_handler_is_done_again_with_the_action_that_it_handles(place: Place) -> None:
    flow = """\
steps:
- {id: a, shell: 'echo ONE; exit 1', on_failure: [{id: h, shell: 'echo saw ${last.output} >> seen'}]}
"""
    run = place.done(flow).result.run
    place.write("flow.yaml", flow.replace("ONE", "TWO"))
    assert asked(place, run) == "the file has changed since these steps were done: steps/a (a)"
    place.resume(run, accept_changes=True)
    assert place.text("seen") == "saw ONE\nsaw TWO\n"


CHANGED = [
    # before                                                after                                              asked about
    ("{id: a, shell: 'true'}", "{id: a, shell: 'true', on_failure: 'true'}", "steps/a (a)"),
    ("{id: a, shell: 'false', continue_on_error: true}", "{id: a, shell: 'true', continue_on_error: true}", "steps/a (a)"),
    ("{id: a, when: '1 == 2', use: b}", "{id: a, when: '1 == 1', use: b}", "steps/a (a)"),
    ("{id: a, foreach: [1], do: [{shell: 'true'}]}", "{id: a, foreach: [1], do: [{shell: 'true'}], capture: c}", "steps/a (a)"),
    ("{id: a, foreach: [1], do: [{shell: 'true'}]}", "{id: a, foreach: [1], do: [{shell: 'echo'}]}", "steps/a/each/item:*/0 (echo)"),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after", "named"), CHANGED)
def test_a_step_that_has_ended_and_says_something_else_is_asked_about(
    place: Place, before: str, after: str, named: str
) -> None:
    flow = (
        "blocks: {b: {steps: [{shell: echo >> seen}]}}\nsteps:\n- STEP\n- {shell: echo >> seen}\n"
    )
    run = place.done(flow.replace("STEP", before)).result.run
    place.write("flow.yaml", flow.replace("STEP", after))
    assert asked(place, run) == f"the file has changed since these steps were done: {named}"
    assert place.text("seen") == "\n"
    place.resume(run, accept_changes=True)
    assert place.resume(run).result.status == "done"


def test_items_that_are_not_chosen_any_more_are_no_question_and_not_retried(place: Place) -> None:
    flow = """\
map:
  input: [x, y]
  id: ${item}
  steps: [{id: w, shell: 'echo ONE; [ ${item} = x ]'}]
reduce: [{shell: echo >> reduced}]
"""
    run = place.run(flow).result.run
    flow = flow.replace("[x, y]", "[x]")
    place.write("flow.yaml", flow)
    place.resume(run, accept_changes=True)
    with pytest.raises(InputError, match="has no failed items"):
        place.retry(run)
    place.write("flow.yaml", flow.replace("ONE", "TWO").replace("[x]", "[z, x]"))
    place.resume(run, accept_changes=True)
    place.write("flow.yaml", flow.replace("ONE", "TWO"))
    place.resume(run, accept_changes=True)
    before = place.text("reduced")
    assert place.resume(run).result.status == "done"
    assert place.text("reduced") == before


def test_a_dry_run_after_a_retry_shows_what_has_changed_since(place: Place) -> None:
    flow = """\
map:
  input: [x, y]
  id: ${item}
  steps: [{id: w, shell: 'echo ONE; [ ${item} = x ] || [ -e mended ]'}]
"""
    run = place.run(flow).result.run
    place.write("flow.yaml", flow.replace("ONE", "TWO"))
    place.write("mended", "")
    place.retry(run)
    place.write("flow.yaml", flow.replace("ONE", "TWO").replace("[x, y]", "[y, x]"))
    shown = plan_resume(run, project=str(place.root))
    assert [one.path for one in shown if one.replayed] == []


REMOVED = [
    # flow                                                                            removed                            asked about
    ("steps: [A, {id: b, shell: echo TWO, capture: said}, {id: c, shell: 'echo ${said} >> seen'}]", "{id: b, shell: echo TWO, capture: said}, ", "steps/b (b, removed)"),
    ("map: {input: [x], id: '${item}', steps: [A, {id: b, shell: echo TWO}, {id: c, shell: 'echo ${last.output} >> seen'}]}", "{id: b, shell: echo TWO}, ", "map/item:*/b (b, removed)"),
    ("setup: [A, {id: b, shell: echo TWO, capture: said}]\nmap: {input: [x], steps: [{id: c, shell: 'echo ${said} >> seen'}]}", ", {id: b, shell: echo TWO, capture: said}", "setup/b (b, removed)"),
]  # fmt: skip


@pytest.mark.parametrize(("flow", "removed", "named"), REMOVED)
def test_what_followed_a_step_that_was_removed_is_done_again(
    place: Place, flow: str, removed: str, named: str
) -> None:
    flow = flow.replace("A", "{id: a, shell: 'echo ONE; echo >> once', capture: said}")
    assert removed in flow
    run = place.done(flow).result.run
    place.write("flow.yaml", flow.replace(removed, ""))
    assert asked(place, run) == f"the file has changed since these steps were done: {named}"
    shown = plan_resume(run, project=str(place.root))
    assert [
        one.path.rpartition("/")[2] for one in shown if one.kind == "shell" and not one.replayed
    ] == ["c"]
    place.resume(run, accept_changes=True)
    assert (place.text("seen"), place.text("once")) == ("TWO\nONE\n", "\n")
    assert place.resume(run).result.status == "done"
    assert place.text("seen") == "TWO\nONE\n"


LEDGER = """\
steps:
- {id: a, shell: echo a >> seen}
- {id: pay, once: true, shell: echo pay >> seen}
- {id: z, shell: '[ -e ok ]'}
"""
LEDGER_OF_ITEMS = """\
setup: [{id: s, shell: echo s >> seen}]
map:
  input: [x]
  id: ${item}
  steps:
  - {id: a, shell: echo a >> seen}
  - {id: b, shell: 'echo b >> seen; [ -e ok ]'}
"""
LOG = "{id: log, shell: echo log >> seen}"


@pytest.mark.parametrize(
    ("flow", "old", "new", "change"),
    [
        (LEDGER, "- {id: pay", f"- {LOG}\n- {{id: pay", "steps/log (log, new)"),
        (
            LEDGER,
            "- {id: a, shell: echo a >> seen}\n- {id: pay, once: true, shell: echo pay >> seen}",
            "- {id: pay, once: true, shell: echo pay >> seen}\n- {id: a, shell: echo a >> seen}",
            "steps/a (a, moved)",
        ),
        (
            LEDGER_OF_ITEMS,
            "setup: [{id: s, shell: echo s >> seen}]\n",
            "",
            None,
        ),  # its end is no part of a list
        (LEDGER_OF_ITEMS.split("\n", 1)[1], "map:", f"setup: [{LOG}]\nmap:", "setup (setup, new)"),
        (LEDGER_OF_ITEMS, "  - {id: a", f"  - {LOG}\n  - {{id: a", "map/item:*/log (log, new)"),
    ],
)
def test_a_new_place_of_a_step_before_others_that_are_done_is_a_change(
    place: Place, flow: str, old: str, new: str, change: str | None
) -> None:
    run = place.run(flow).result.run
    seen = place.text("seen")
    changed = flow.replace(old, new)
    assert changed != flow
    place.write("flow.yaml", changed)
    if change is None:
        place.write("ok", "")
        assert place.plait("retry", run, "--failed").returncode == 0
        return
    refused = place.plait("resume", run)
    assert (refused.returncode, place.text("seen")) == (2, seen)
    assert f"since these steps were done: {change}\n" in refused.stderr
    place.write("ok", "")
    assert place.plait("resume", run, "--accept-changes").returncode == 0
    assert place.text("seen") != seen
    seen = place.text("seen")
    assert place.plait("resume", run).returncode == 0
    assert place.text("seen") == seen


@pytest.mark.parametrize("new", ["  - {id: a", "  - {id: b"])
def test_what_is_put_behind_all_that_is_done_is_none(place: Place, new: str) -> None:
    flow = LEDGER_OF_ITEMS.replace("echo b >> seen; ", "")
    run = place.run(
        flow.replace("  - {id: a, shell: echo a >> seen}\n", "") if new.endswith("a") else flow
    )
    place.write("flow.yaml", flow.replace("  - {id: b", f"  - {LOG}\n  - {{id: b"))
    place.write("ok", "")
    assert place.plait("retry", run.result.run, "--failed").returncode == 0
    assert place.plait("resume", run.result.run).returncode == 0
    assert place.text("seen").splitlines().count("log") == 1


def test_a_changed_step_of_an_item_that_was_cut_is_reported_before_anything_runs(
    place: Place,
) -> None:
    flow = """\
map:
  input: [x, y]
  id: ${item}
  max_parallel: 1
  steps:
  - {id: a, shell: 'echo a${item} >> seen'}
  - {id: b, shell: 'if [ ${item} = y ]; then DIES; fi'}
""".replace("DIES", DIES)
    place.write("flow.yaml", flow.replace("[x, y]", "[y, x]"))
    cut(place, "run", "flow.yaml")
    seen = place.text("seen")
    place.write("flow.yaml", flow.replace("[x, y]", "[y, x]").replace("echo a", "echo A"))
    refused = place.plait("resume")
    assert (refused.returncode, place.text("seen")) == (2, seen)
    assert "map/item:*/a (a)" in refused.stderr


@pytest.mark.parametrize(
    "flow",
    [
        "{id: v, shell: echo ONE > art, validate: {shell: 'echo check $(cat art) >> seen'}}",
        "{id: v, shell: echo ONE > art, on_success: {shell: 'echo check $(cat art) >> seen'}}",
        "{id: v, shell: echo ONE > art, on_exit_code: {0: {shell: 'echo check $(cat art) >> seen'}}}",
        "{id: v, shell: echo ONE > art; exit 1, on_failure: {shell: 'echo check $(cat art) >> seen'}}",
    ],
)
def test_what_follows_an_action_inside_its_step_follows_it_again(place: Place, flow: str) -> None:
    run = place.done(f"steps: [{flow}]").result.run
    place.write("flow.yaml", f"steps: [{flow.replace('ONE', 'TWO')}]")
    assert place.plait("resume", run, "--accept-changes").returncode == 0
    assert place.text("seen") == "check ONE\ncheck TWO\n"


HANDLED = """\
map:
  input: [x]
  id: ${item}
  steps:
  - id: act
    shell: 'echo act >> seen; echo held > lockfile; exit 1'
    on_failure:
      steps:
      - {id: clean, shell: 'echo clean ${error.exit_code} >> seen; rm lockfile'}
      - {id: tell, shell: 'echo tell >> seen; DIES; [ -e ok ]'}
""".replace("DIES", DIES)


def test_a_handler_that_was_cut_goes_on_where_it_was(place: Place) -> None:
    place.write("flow.yaml", HANDLED)
    place.write("ok", "")
    cut(place, "run", "flow.yaml")
    assert place.plait("resume").returncode == 0
    assert place.text("seen").split("\n") == ["act", "clean 1", "tell", "tell", ""]


def test_a_step_that_failed_in_spite_of_its_handler_is_handled_anew(place: Place) -> None:
    run = place.run(HANDLED).result.run
    place.write("ok", "")
    assert place.plait("retry", run, "--failed").returncode == 0
    assert place.text("seen").split("\n") == [*("act", "clean 1", "tell") * 2, ""]
    assert not (place.root / "lockfile").exists()


@pytest.mark.parametrize(
    ("old", "change"),
    [
        ("- {id: a, shell: echo a >> seen}", "map/item:*/log (log, new)"),
        ("- {id: r, shell: echo r >> seen}", ""),
    ],
)
def test_a_step_that_is_put_at_the_end_of_a_list_is_a_change_if_what_is_behind_the_list_is_done(
    place: Place, old: str, change: str
) -> None:
    flow = """\
map:
  input: [x]
  id: ${item}
  steps:
  - {id: a, shell: echo a >> seen}
reduce:
  - {id: r, shell: echo r >> seen}
"""
    run = place.done(flow).result.run
    place.write("flow.yaml", flow.replace(old, f"{old}\n  - {LOG}"))
    ended = place.plait("resume", run)
    assert (change in ended.stderr, ended.returncode) == (True, 2 if change else 0)
    assert place.text("seen").split() == (["a", "r"] if change else ["a", "r", "log"])


def test_a_check_that_failed_is_not_repeated_when_its_handler_was_cut(place: Place) -> None:
    flow = """\
steps:
- id: v
  shell: 'true'
  validate:
    shell: 'echo check >> seen; if grep -q pay seen; then DIES; fi; exit 1'
    on_incomplete:
      max_attempts: 1
      fail_workflow: false
      steps: [{id: p, once: true, shell: echo pay >> seen}]
""".replace("DIES", DIES)
    place.write("flow.yaml", flow)
    cut(place, "run", "flow.yaml")
    assert place.plait("resume").returncode == 0
    assert place.text("seen").split() == ["check", "pay", "check", "check"]


@pytest.mark.parametrize(
    "flow",
    [
        "map: {input: [x], id: '${item}', timeout: 1s, retry: RETRY, steps: [PAY]}",
        "steps: [{id: f, timeout: 1s, retry: RETRY, foreach: [x], do: [PAY]}]",
    ],
)
def test_a_step_that_may_run_once_is_asked_about_when_it_was_cut_and_all_around_it_is_tried_again(
    place: Place, flow: str
) -> None:
    flow = flow.replace("RETRY", "{attempts: 2, initial_delay: 0.01}")
    flow = flow.replace("PAY", "{id: pay, once: true, shell: 'echo pay >> seen; sleep 30'}")
    ended = place.run(flow)
    assert "may run at most once; it started, and its outcome is unknown" in ended.message
    assert place.text("seen") == "pay\n"


def test_a_removed_step_inside_another_one_takes_what_followed_it_along(place: Place) -> None:
    flow = """\
steps:
- id: e
  foreach: [q]
  do: [{id: a, shell: echo A > art}, {id: b, shell: echo b >> seen}]
- {id: z, shell: '[ -e ok ]'}
"""
    run = place.run(flow).result.run
    place.write("flow.yaml", flow.replace("{id: a, shell: echo A > art}, ", ""))
    place.write("ok", "")
    refused = place.plait("resume", run)
    assert (refused.returncode, "steps/e" in refused.stderr) == (2, True)
    assert place.plait("resume", run, "--accept-changes").returncode == 0
    assert place.text("seen") == "b\nb\n"


def test_a_phase_that_is_gone_is_a_change_for_those_behind_it(place: Place) -> None:
    flow = """\
setup: [{id: s, shell: echo one > conf}]
map: {input: [x], id: '${item}', steps: [{id: a, shell: cat conf >> seen}]}
reduce: [{id: r, shell: '[ -e ok ]'}]
"""
    run = place.run(flow).result.run
    place.write("flow.yaml", flow.split("\n", 1)[1])
    place.write("ok", "")
    refused = place.plait("resume", run)
    assert (refused.returncode, "setup (setup, removed)" in refused.stderr) == (2, True)
    assert place.plait("resume", run, "--accept-changes").returncode == 0
    assert place.text("seen") == "one\none\n"


@pytest.mark.parametrize(
    ("step", "mended"),
    [
        (
            "{id: v, once: true, shell: echo act >> seen, validate: {shell: test 1 = 2}}",
            "{id: v, once: true, shell: echo act >> seen, validate: {shell: test 1 = 1}}",
        ),
        (
            "{id: v, once: true, shell: echo act >> seen, on_success: {shell: 'false'}}",
            "{id: v, once: true, shell: echo act >> seen, on_success: {shell: 'true'}}",
        ),
        (
            "{id: a, shell: echo act >> seen}, {id: b, shell: 'false'}",
            "{id: a, shell: echo act >> seen}",
        ),
        (
            "{id: a, shell: echo act >> seen}, {id: b, shell: 'false'}",
            "{id: a, shell: echo act >> seen}, {id: c, shell: 'true'}",
        ),
    ],
)
def test_a_step_that_failed_may_change_freely(place: Place, step: str, mended: str) -> None:
    run = place.run(f"steps: [{step}]").result.run
    place.write("flow.yaml", f"steps: [{mended}]")
    assert place.plait("resume", run).returncode == 0
    assert place.text("seen") == "act\n"


def test_a_dry_run_compares_what_a_strict_flow_says(place: Place) -> None:
    flow = "strict: true\nsteps: [{id: a, shell: echo a}, {id: z, shell: '[ -e ok ]'}]\n"
    run = place.run(flow).result.run
    shown = place.plait("resume", run, "--dry-run")
    assert "(replayed)" in shown.stdout
    assert "would refuse" not in shown.stderr
    place.write("flow.yaml", flow.replace("strict: true\n", ""))
    assert "would refuse" in place.plait("resume", run, "--dry-run").stderr


def test_an_accepted_text_is_not_asked_about_again(place: Place) -> None:
    flow = LIST.replace("DIES", DIES)
    run = place.done(flow).result.run
    place.write("flow.yaml", flow.replace("ONE", "TWO"))
    cut(place, "resume", run, "--accept-changes")
    shown = place.plait("resume", run, "--dry-run")
    assert "would refuse" not in shown.stderr
    assert place.plait("resume", run).returncode == 0
    assert place.text("seen").splitlines()[-2:] == ["b TWO", "c TWO"]
    place.write("flow.yaml", flow.replace("ONE", "THREE"))
    with pytest.raises(InputError, match="has changed"):
        place.resume(run)


def test_no_question_about_a_step_is_repeated_because_another_one_has_changed(place: Place) -> None:
    flow = LIST.replace("DIES", DIES)
    run = place.done(flow).result.run
    place.write(
        "flow.yaml",
        flow.replace("ONE", "TWO").replace("echo b", "if [ ! -e ok ]; then exit 1; fi; echo b"),
    )
    assert place.plait("resume", run, "--accept-changes").returncode == 1
    place.write("ok", "")
    place.write("flow.yaml", flow.replace("ONE", "TWO"))  # b has failed and may change freely
    assert place.resume(run).result.status == "done"
    assert place.text("seen").splitlines()[-2:] == ["b TWO", "c TWO"]


def test_what_was_accepted_is_forgotten_when_the_run_goes_on_by_another_text(place: Place) -> None:
    flow = "steps: [{id: a, shell: echo ONE >> seen}, {id: b, shell: 'exit 1'}]\n"
    two = flow.replace("ONE", "TWO")
    run = place.run(flow).result.run
    place.write("flow.yaml", two)
    place.resume(run, accept_changes=True)
    place.write("flow.yaml", flow)
    place.resume(run, accept_changes=True)
    place.write("flow.yaml", two)
    with pytest.raises(InputError, match="has changed"):
        place.resume(run)
    assert place.text("seen") == "ONE\nTWO\nONE\n"


def test_a_retry_by_another_text_is_not_covered_by_what_was_accepted_before(place: Place) -> None:
    flow = "map: {input: [x, y], id: '${item}', steps: [{id: a, shell: echo ONE}, {id: b, shell: '[ -e ${item} ]'}]}\n"
    run = place.run(flow).result.run
    place.write("flow.yaml", flow.replace("ONE", "TWO"))
    place.resume(run, accept_changes=True)
    place.write("flow.yaml", flow.replace("ONE", "THREE"))
    place.write("x", "")
    place.retry(run, items=["x"], from_start=True)
    place.write("flow.yaml", flow.replace("ONE", "TWO"))
    with pytest.raises(InputError, match="has changed"):
        place.resume(run)


def test_the_line_that_ctrl_c_prints_goes_on_also_with_a_text_that_was_accepted(
    place: Place,
) -> None:
    flow = """\
steps:
- {id: a, shell: echo ONE >> seen}
- {id: b, shell: 'while [ ! -e go ]; do sleep 0.02; done; echo b >> seen'}
"""
    place.write("go", "")
    run = place.done(flow).result.run
    place.write("flow.yaml", flow.replace("ONE", "TWO"))
    (place.root / "go").unlink()
    stop = StopSignal()

    def stop_behind_a(reported: EventRecord) -> None:
        if isinstance(reported.event, StepFinished) and reported.event.path == "steps/a":
            stop.ask()

    observers = RunObservers([stop_behind_a], stop=stop)
    result = resume_flow(run, project=str(place.root), accept_changes=True, observers=observers)
    assert result.status == "interrupted"
    place.write("go", "")
    assert place.resume(run).result.status == "done"
    assert place.text("seen") == "ONE\nb\nTWO\nb\n"


LONG = """\
map:
  input: items.jsonl
  id: "${item.n}"
  steps:
  - {id: a, write_file: {path: "a", content: ONE}}
  - {id: b, when: "${item.n} == 5", shell: '[ -e ok ]'}
"""


@pytest.mark.parametrize(
    ("edit", "change"),
    [
        (lambda flow: flow.replace("ONE", "TWO"), "map/item:*/a (a)"),
        (
            lambda flow: "\n".join(
                [*flow.splitlines()[:4], flow.splitlines()[5], flow.splitlines()[4], ""]
            ),
            "moved",
        ),
        (
            lambda flow: "\n".join([*flow.splitlines()[:4], flow.splitlines()[5], ""]),
            "map/item:*/a (a, removed)",
        ),
        (
            lambda flow: flow.replace("  - {id: b", f"  - {LOG}\n  - {{id: b"),
            "map/item:*/log (log, new)",
        ),
    ],
)
def test_in_a_long_journal_that_was_once_retried_all_is_as_in_a_short_one(
    place: Place, monkeypatch: pytest.MonkeyPatch, edit: Callable[[str], str], change: str
) -> None:
    monkeypatch.setattr("plait.adapters.store.reader.MANY", 20)
    monkeypatch.setattr("plait.adapters.store.reader.Reader.is_long", lambda self: self.last() > 20)
    place.write("items.jsonl", "".join(f'{{"n": {n}}}\n' for n in range(30)))
    run = place.run(LONG).result.run
    place.write("ok", "")
    assert place.retry(run).result.counts["successful"] == 30
    place.write("flow.yaml", edit(LONG))
    with pytest.raises(InputError) as refused:
        place.resume(run)
    assert change in str(refused.value)
    again = place.resume(run, accept_changes=True)
    done = [
        event for event in again.events if isinstance(event, StepFinished) and not event.replayed
    ]
    assert sum(event.kind == "item" for event in done) == 30
    assert place.resume(run).result.status == "done"


CHECKED = """\
{id: v, shell: echo act >> seen, validate: {shell: 'echo check >> seen; if [ -e ok ]; then echo "{\\"completion_percentage\\": 100}"; else
  echo "{\\"completion_percentage\\": 40}"; fi', on_incomplete: {shell: echo fix >> seen, max_attempts: 1}}}
"""


@pytest.mark.parametrize(
    ("flow", "command"),
    [
        (f"steps: [{CHECKED}]", ["resume"]),
        (f"map: {{input: [x], id: '${{item}}', steps: [{CHECKED}]}}", ["retry", "--failed"]),
    ],
)
@pytest.mark.parametrize("edit", ["", "40"])
def test_a_step_that_failed_by_its_check_is_checked_again(
    place: Place, flow: str, command: list[str], edit: str
) -> None:
    run = place.run(flow).result.run
    assert place.text("seen").split() == ["act", "check", "fix", "check"]
    place.write("ok", "")
    if edit:
        place.write("flow.yaml", flow.replace(edit, f"{edit}.5"))
    done = place.plait(command[0], run, *command[1:])
    assert done.returncode == 0, done.stdout + done.stderr
    assert place.text("seen").split() == ["act", "check", "fix", "check", "check"]


NO_GAPS = "steps: [{id: v, shell: 'echo act >> seen; cp src res', validate: {shell: 'echo check >> seen; grep -q good res'}}]\n"


def test_a_step_whose_check_nothing_else_could_satisfy_is_tried_from_its_action(
    place: Place,
) -> None:
    place.write("src", "bad")
    run = place.run(NO_GAPS).result.run
    place.write("src", "good")
    assert place.resume(run).result.status == "done"
    assert place.text("seen").split() == ["act", "check", "act", "check"]
    place.resume(run)
    assert place.text("seen").split() == ["act", "check", "act", "check"]


def test_but_not_if_it_may_run_only_once(place: Place) -> None:
    place.write("src", "bad")
    flow = NO_GAPS.replace("{id: v,", "{id: v, once: true,")
    run = place.run(flow).result.run
    place.write("res", "good")
    assert place.resume(run).result.status == "done"
    assert place.text("seen").split() == ["act", "check", "check"]


def test_the_action_of_a_step_that_failed_by_its_check_may_change_freely(place: Place) -> None:
    place.write("src", "bad")
    gaps = NO_GAPS.replace("good res'}", "good res', on_incomplete: 'echo fill >> seen'}")
    run = place.run(gaps).result.run
    place.write("seen", "")
    place.write("flow.yaml", gaps.replace("cp src res", "echo good > res"))
    assert place.resume(run).result.status == "done"
    assert place.text("seen").split() == ["act", "check"]


def test_a_payment_that_failed_by_its_check_may_not(place: Place) -> None:
    place.write("src", "bad")
    flow = NO_GAPS.replace("{id: v,", "{id: v, once: true,")
    run = place.run(flow).result.run
    place.write("flow.yaml", flow.replace("cp src res", "echo good > res"))
    with pytest.raises(InputError, match="has changed"):
        place.resume(run)


def test_what_follows_a_check_that_was_content_does_not_ask_it_again(place: Place) -> None:
    flow = """\
steps:
- id: release
  shell: echo act >> seen
  validate: {shell: echo check >> seen}
  on_success: {shell: 'echo deploy >> seen; test -e ok'}
"""
    run = place.run(flow).result.run
    place.write("ok", "")
    assert place.resume(run).result.status == "done"
    assert place.text("seen").split() == ["act", "check", "deploy", "deploy"]


def test_only_a_step_that_somebody_was_asked_about_is_repeated(place: Place) -> None:
    run = place.run("steps: [{id: a, shell: echo a}, {id: b, shell: 'exit 1'}]\n").result.run
    with pytest.raises(InputError, match="'steps/a' needs no answer"):
        place.resume(run, repeat=["steps/a"])


@pytest.mark.parametrize("gone", ["setup", "reduce", "merge"])
def test_a_phase_that_was_done_and_was_removed_is_a_change(place: Place, gone: str) -> None:
    phases = {
        name: f"{name}: [{{shell: 'echo {name} >> seen; echo {name}'}}]\n"
        for name in ("setup", "reduce", "merge")
    }
    run = place.done("".join(phases.values())).result.run
    place.write("flow.yaml", "".join(text for name, text in phases.items() if name != gone))
    with pytest.raises(InputError, match=rf"{gone} \({gone}, removed\)"):
        place.resume(run)
    value = place.resume(run, accept_changes=True).result.value
    assert isinstance(value, dict)
    assert value["output"] == ("reduce\n" if gone == "merge" else "merge\n")
    assert place.resume(run).result.status == "done"


def test_a_phase_that_failed_and_was_removed_is_no_question_once_what_is_behind_it_is_done(
    place: Place,
) -> None:
    gone = "reduce: [{shell: exit 1}]\n"
    flow = f"setup: [{{shell: 'echo a >> seen'}}]\n{gone}merge: [{{shell: 'echo b >> seen'}}]\n"
    run = place.run(flow).result.run
    place.write("flow.yaml", flow.replace(gone, ""))
    for accept in (False, False, True):
        assert place.resume(run, accept_changes=accept).result.status == "done"
    assert place.text("seen").split() == ["a", "b"]


def test_an_answer_about_a_step_that_is_done_does_not_outlive_it(place: Place) -> None:
    flow = "steps: [{id: a, shell: echo ONE, capture_output: n}, {id: b, shell: 'echo ${n} >> seen; test -e ok'}]\n"
    run = place.run(flow).result.run
    place.resume(run, done=["steps/a"])
    place.write("ok", "")
    place.write("flow.yaml", flow.replace("ONE", "TWO"))
    assert place.resume(run, accept_changes=True).result.status == "done"
    assert place.text("seen").split() == ["ONE", "ONE", "TWO"]


def test_a_dry_run_knows_that_what_follows_an_answer_is_done_again(place: Place) -> None:
    flow = "steps: [{id: a, shell: 'true'}, {id: b, shell: 'echo b >> seen'}, {id: c, shell: 'test -e ok'}]\n"
    run = place.run(flow).result.run
    place.write("flow.yaml", flow.replace("{id: b", "{id: new, shell: 'echo new >> seen'}, {id: b"))
    place.write("ok", "")
    command = ("resume", run, "--accept-changes", "--done", "steps/new")
    assert place.plait(*command, "--dry-run").stdout.splitlines() == [
        "steps/a   shell   a   (replayed)",
        "steps/new   shell   new   (replayed)",
        "steps/b   shell   echo b >> seen   (again: a step before it is done again)",
        "steps/c   shell   test -e ok   (again: it had failed)",
    ]
    assert place.plait(*command).returncode == 0
    assert place.text("seen").split() == ["b", "b"]


@pytest.mark.parametrize("path", ["map", "map/item:x", "setup", "map/items"])
@pytest.mark.parametrize("answer", ["done", "repeat"])
def test_what_only_holds_steps_is_no_subject_of_an_answer(
    place: Place, path: str, answer: str
) -> None:
    flow = "setup: [{shell: 'true'}]\nmap: {input: [x], id: '${item}', steps: [{shell: 'false'}]}\n"
    run = place.run(flow).result.run
    with pytest.raises(InputError, match="only holds steps"):
        place.resume(run, **{answer: [path]})


def test_a_step_of_an_item_that_was_never_begun_can_be_marked_done(place: Place) -> None:
    flow = """\
map:
  input: [x]
  id: ${item}
  steps: [{id: a, shell: 'test -e ok'}, {id: send, shell: 'echo SEND >> seen'}, {shell: 'echo end >> seen'}]
"""
    run = place.run(flow).result.run
    with pytest.raises(InputError) as caught:
        place.resume(run, done=["map/item:y/send"])
    assert "*" not in str(caught.value)
    place.resume(run, done=["map/item:x/send"])
    place.write("ok", "")
    assert place.retry(run).result.counts["failed"] == 0
    assert place.text("seen") == "end\n"


# ── names, phases and failures behind an edit ────────────────────────────


def test_steps_of_items_that_have_another_name_are_done_again(place: Place) -> None:
    flow = "map: {input: [x], id: '${item}', steps: [{id: a, shell: 'echo a >> seen'}, {id: b, shell: 'echo b >> seen'}]}\n"
    run = place.done(flow).result.run
    place.write("flow.yaml", flow.replace("id: a", "id: c"))
    with pytest.raises(InputError, match="c, new"):
        place.resume(run)
    assert place.resume(run, accept_changes=True).result.status == "done"
    assert place.text("seen").split() == ["a", "b", "a", "b"]
    assert place.resume(run).finished.keys() == {"map"}


def test_a_phase_that_was_gone_when_items_were_retried_makes_nothing_be_done_again_later(
    place: Place,
) -> None:
    flow = """\
map: {input: [x], id: '${item}', steps: [{shell: 'test -e ok'}]}
reduce: [{shell: 'echo r >> seen'}]
merge: [{shell: 'echo m >> seen'}]
"""
    run = place.run(flow).result.run
    place.write(
        "flow.yaml", "".join(line + "\n" for line in flow.splitlines() if "reduce" not in line)
    )
    place.write("ok", "")
    assert place.retry(run).result.status == "done"
    assert place.resume(run, accept_changes=True).result.status == "done"
    assert place.text("seen").split() == ["r", "m", "m"]


def test_an_item_that_failed_behind_a_retry_is_done_again_when_its_step_has_changed(
    place: Place,
) -> None:
    flow = """\
map:
  input: [x, y]
  id: ${item}
  max_parallel: 1
  error_policy: {on_item_failure: STOP}
  steps: [{shell: 'echo ${item} >> seen; test -e ok'}]
"""
    run = place.run(flow.replace("STOP", "stop")).result.run  # y is not begun
    place.write("flow.yaml", flow.replace("STOP", "dlq"))
    place.retry(run)
    place.write("flow.yaml", flow.replace("STOP", "dlq").replace("-e ok", "-d ."))
    assert place.resume(run, accept_changes=True).result.counts["successful"] == 2
    assert place.text("seen").split() == ["x", "x", "y", "x", "y"]


def test_a_resumed_run_in_which_too_many_had_failed_begins_nothing(place: Place) -> None:
    flow = """\
map:
  input: [a, b, c, d, e, f]
  id: ${item}
  max_parallel: 1
  max_failures: 2
  steps: [{shell: 'echo ${item} >> seen; test ${item} != a && test ${item} != c'}]
"""
    run = place.run(flow).result.run
    again = place.resume(run, max_parallel=4)
    assert again.message == "2 items failed, and max_failures is 2"
    assert again.result.counts == {
        "total": 6,
        "successful": 1,
        "failed": 2,
        "skipped": 0,
        "success_rate": 16.67,
    }
    assert place.text("seen").split() == ["a", "b", "c"]
    place.write("flow.yaml", flow.replace("max_failures: 2", "max_failures: 9"))
    assert place.resume(run).result.counts["successful"] == 4
    assert place.text("seen").split() == ["a", "b", "c", "d", "e", "f"]
    place.write("flow.yaml", flow.replace("!= a", "!= z").replace("!= c", "!= z"))
    assert place.resume(run, accept_changes=True).result.counts["failed"] == 0


def test_a_secret_that_an_author_wrote_is_masked_where_a_resume_is_refused(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "s3cret-value")
    flow = """\
secrets: {token: TOKEN}
steps:
- {shell: test s3cret-value}
- {once: true, shell: 'test s3cret-value; DIES'}
""".replace("DIES", DIES)
    place.write("flow.yaml", flow)
    cut(place, "run", "flow.yaml")
    asked = place.plait("resume")
    place.write("flow.yaml", flow.replace("test s3cret-value}", "test s3cret-value -a 1}"))
    for refused in (asked, place.plait("resume")):
        printed = refused.stdout + refused.stderr
        assert "test ***" in printed
        assert "s3cret" not in printed
