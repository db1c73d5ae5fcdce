"""What becomes of real runs: variables that change, time that runs out, outputs that are too long, titles."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from plait.app.env_digest import describe_change, env_digest
from plait.app.runs import RunObservers, flow_runs, plan_resume, retry_flow
from plait.app.services import LocalProcesses
from plait.app.takeover import look_at, take_over
from plait.core.errors import InputError, TrustError
from plait.engine.coroutines import finish
from plait.engine.events import EventRecord, StepRenamed, StepStarted
from plait.engine.stop import StopSignal
from plait.template.shell.binding import BoundScript
from plait.template.shell.script import bind_shell
from plait.template.template import compile_template
from runs.stories import Place, new_place

LONG = "yes 0123456789 | head -c 20000000"  # more than the 16 MiB that are kept in memory


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return new_place(tmp_path, monkeypatch)


# ── env files ────────────────────────────────────────────────────────────

WITH_ENV_FILE = """
env_files: [vars.env]
steps:
  - {id: first, shell: "echo ${MODE} >> ledger"}
  - {id: second, shell: "test -e ready && echo ${MODE} >> ledger"}
"""
FIX = (
    "\nfix: plait resume RUN --accept-changes accepts them, and what is done stays done; "
    "or put the files back as they were"
)


def test_a_changed_env_file_is_noticed_and_accepted_like_a_changed_flow(place: Place) -> None:
    place.write("vars.env", "MODE=one\nTOKEN=s3cret-value\n")
    run = place.run(WITH_ENV_FILE).result.run
    place.write("ready", "")
    place.write("vars.env", "MODE=two\nTOKEN=s3cret-value\n")
    with pytest.raises(InputError) as raised:
        place.resume(run)
    assert str(raised.value) == (
        f"the env files have changed since the run began: at least one of MODE, TOKEN has another value{FIX.replace('RUN', run)}"
    )
    resumed = place.resume(run, accept_changes=True)
    assert resumed.notes == [
        "the env files have changed, and the run continues with them: at least one of MODE, TOKEN has another value"
    ]
    assert place.text("ledger") == "one\ntwo\n"  # what was done is not done again
    assert place.resume(run).notes == []  # accepted once is accepted
    assert b"s3cret-value" not in place.state


def test_variables_that_came_or_went_are_named_beside_the_steps_that_changed(place: Place) -> None:
    place.write("vars.env", "MODE=one\n")
    run = place.run(WITH_ENV_FILE).result.run
    place.write("vars.env", "MODES=one\n")
    place.write("flow.yaml", WITH_ENV_FILE.replace("${MODE}", "${MODES}"))
    with pytest.raises(InputError) as raised:
        place.resume(run)
    assert [problem.what for problem in raised.value.problems] == [
        "the file has changed since these steps were done: steps/first (first)",
        "the env files have changed since the run began: MODES is new, MODE is gone",
    ]


CHANGES: Sequence[tuple[dict[str, str], dict[str, str], str | None]] = [
    ({},                   {},                   None),
    ({"a": "1"},           {"a": "1"},           None),
    ({"a": "1", "b": "2"}, {"b": "2", "a": "1"}, None),
    ({"a": "1"},           {"a": "2"},           "a has another value"),
    ({"a": "1", "b": ""},  {"a": "", "b": "1"},  "at least one of a, b has another value"),
    ({},                   {"a": "1"},           "a is new"),
    ({"a": "1"},           {},                   "a is gone"),
    ({"a": "1", "b": "2"}, {"a": "2", "b": "2", "c": "3"}, "c is new; at least one of a, b has another value"),
    ({"a": "1", "b": "2"}, {"a": "1", "b": "2", "c": "3"}, "c is new"),
    ({"a": "1", "b": "2"}, {"a": "1", "c": "3"}, "c is new, b is gone; whether a has another value cannot be known"),
]  # fmt: skip


@pytest.mark.parametrize(("before", "now", "change"), CHANGES)
def test_changes_are_reported_by_name(
    before: dict[str, str], now: dict[str, str], change: str | None
) -> None:
    assert describe_change(env_digest(before), now) == change


def test_the_same_variables_look_different_in_every_run() -> None:
    one, other = (env_digest({"PIN": "1234"})["digest"] for _ in range(2))
    assert one != other


# ── time ─────────────────────────────────────────────────────────────────


HEADS = [
    # head before                                       head after                                       steps that changed
    ("vars: {p: 1}",                                    "vars: {p: 2}",                                  ["a", "w"]),
    ("parameters: {p: {default: 1}}",                   "parameters: {p: {default: 2}}",                 ["a", "w"]),
    ("parameters: {q: {default: 1}}\nvars: {p: '${q}'}", "parameters: {q: {default: 2}}\nvars: {p: '${q}'}", ["a", "w"]),
    ("vars: {p: 1}\nenv: {E: '${p}'}",                  "vars: {p: 2}\nenv: {E: '${p}'}",                ["a", "b", "w"]),
    ("vars: {p: 1, z: 1}",                              "vars: {p: 1, z: 2}",                            []),
    ("vars: {p: 1}",                                    "env: {z: 1}\nvars: {p: 1}",                     ["a", "b", "w"]),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after", "changed"), HEADS)
def test_a_changed_variable_or_default_is_noticed_by_the_steps_that_mention_it(
    place: Place, before: str, after: str, changed: list[str]
) -> None:
    steps = """
steps:
  - {id: a, shell: 'echo a${p} >> ledger'}
  - {id: b, shell: 'echo b >> ledger'}
  - {id: w, shell: 'echo w >> ledger', when: {path: p, op: exists}}
  - {id: z, shell: 'echo z${p} >> ledger; test -e ready'}
"""
    run = place.run(f"{before}{steps}").result.run
    place.write("ready", "")
    place.write("flow.yaml", f"{after}{steps}")
    if not changed:
        assert place.resume(run).result.status == "done"
        assert place.text("ledger").split() == ["a1", "b", "w", "z1", "z1"]
        return
    with pytest.raises(InputError) as caught:
        place.resume(run)
    assert re.findall(r"steps/(\w+)", str(caught.value)) == changed
    assert place.text("ledger").split() == ["a1", "b", "w", "z1"]


def test_a_default_that_something_given_replaced_may_change(place: Place) -> None:
    flow = (
        "parameters: {p: {default: 1}}\nsteps: [{shell: 'echo ${p}'}, {shell: 'test -e ready'}]\n"
    )
    run = place.run(flow, inputs={"p": "7"}).result.run
    place.write("ready", "")
    place.write("flow.yaml", flow.replace("default: 1", "default: 2"))
    assert place.resume(run).outputs == {"steps/0": "7", "steps/1": ""}


def test_items_that_a_changed_variable_chose_are_noticed(place: Place) -> None:
    flow = (
        "vars: {n: 1}\nmap: {input: 'seq ${n}', max_items: 9, steps: [{shell: 'test -e ready'}]}\n"
    )
    flow = flow.replace("'seq ${n}'", "{command: 'seq ${n}'}")
    run = place.run(flow).result.run
    place.write("flow.yaml", flow.replace("n: 1", "n: 2"))
    with pytest.raises(InputError, match=r"map/items \(the items\)"):
        place.resume(run)


def test_a_run_whose_time_is_over_says_what_became_of_its_items(place: Place) -> None:
    ran = place.run(
        """
timeout: 2
map:
  input: [a, b, c, d]
  max_parallel: 1
  steps:
    - shell: test ${item} = a || sleep 60
"""
    )
    assert ran.message == "took longer than 2 s"
    assert ran.result.counts == {
        "total": 4,
        "successful": 1,
        "failed": 0,
        "skipped": 0,
        "success_rate": 25.0,
    }
    reasons = {one.why for one in plan_resume(ran.result.run, project=str(place.root)) if one.why}
    assert reasons == {"it was stopped: the timeout of an outer step was reached"}


# ── what a step is called ────────────────────────────────────────────────


def test_a_step_without_a_name_is_called_by_what_it_runs_with_secrets_masked(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "s3cret-value")
    ran = place.done(
        """
secrets: {token: TOKEN}
parameters: {who: string}
steps:
  - shell: "echo ${who} ${token}"
  - {id: named, shell: "echo ${who}"}
  - shell: |
      echo ${who}
      echo more
    on_failure: {shell: echo no}
  - shell: echo plain
""",
        inputs={"who": "it's me"},
    )
    titles = {path: end.title for path, end in ran.finished.items() if path.startswith("steps/")}
    assert titles == {
        "steps/0": """echo 'it'"'"'s me' '***'""",
        "steps/named": "named",
        "steps/2/run": """echo 'it'"'"'s me'…""",
        "steps/2": """echo 'it'"'"'s me'…""",
        "steps/3": "echo plain",
    }
    begun = [event.title for event in ran.events if isinstance(event, StepStarted)]
    assert "echo ${who} ${token}" in begun
    assert [event.path for event in ran.events if isinstance(event, StepRenamed)] == [
        "steps/0",
        "steps/2/run",
    ]


def test_a_secret_that_an_author_wrote_into_the_file_is_masked_in_titles(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "s3cret-value")
    ran = place.run(
        """
secrets: {token: TOKEN}
steps:
  - shell: test s3cret-value
  - {name: check s3cret-value, shell: 'true'}
  - {foreach: [s3cret-value, b], do: [{shell: 'echo ${item}'}]}
  - {once: true, shell: test s3cret-value}
  - {shell: test s3cret-value = no, timeout: 5s}
"""
    )
    begun = [event.title for event in ran.events if isinstance(event, StepStarted)]
    assert begun == [
        "steps", "test ***", "check ***", "***, b", "foreach", "the items", "***", "echo ${item}", "b", "echo ${item}", "test ***",
        "test *** = no",
    ]  # fmt: skip
    assert ran.failed[0] == "steps/4"
    assert "s3cret-value" not in repr(ran.events)
    assert b"s3cret-value" not in place.state


@pytest.mark.parametrize("room", [19, 30, 40])
def test_a_secret_that_the_end_of_a_title_cuts_is_masked(
    place: Place, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    monkeypatch.setenv("TOKEN", "s3cret-value-hunter2-" * 2)
    command = f"test -n {'a' * (51 - room)}/{'s3cret-value-hunter2-' * 2}"
    ran = place.done(f"secrets: {{token: TOKEN}}\nsteps: [{{shell: {command}}}]\n")
    titles = {event.title for event in ran.events if isinstance(event, StepStarted)}
    assert titles == {"steps", f"test -n {'a' * (51 - room)}/***…"}
    assert b"s3cret" not in place.state


def test_requests_and_agents_without_a_name_are_called_by_what_they_ask(place: Place) -> None:
    place.program("claude", "#!/bin/sh\ncat > /dev/null\n")
    ran = place.run(
        """
vars: {base: "http://127.0.0.1:9"}
steps:
  - {claude: "/fix ${base}"}
  - {http: "${base}/a", continue_on_error: true}
  - {http: {method: POST, url: "${base}/b"}, on_failure: true}
  - {id: named, http: "${base}/c", on_failure: true}
"""
    )
    titles = {path: end.title for path, end in ran.finished.items() if path.startswith("steps/")}
    assert titles == {
        "steps/0": "/fix http://127.0.0.1:9",
        "steps/1": "http://127.0.0.1:9/a",
        "steps/2/run": "http://127.0.0.1:9/b",
        "steps/2/on_failure": "on_failure",
        "steps/2": "http://127.0.0.1:9/b",
        "steps/named/run": "named",
        "steps/named/on_failure": "on_failure",
        "steps/named": "named",
    }


# ── handlers ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize("handler", ["on_failure", "on_exit_code: {2"])
def test_a_handler_that_fails_does_not_hide_why_the_step_did(place: Place, handler: str) -> None:
    closing = "}" if "{" in handler else ""
    ran = place.run(
        f"""
steps:
  - shell: "echo mine >&2; exit 2"
    {handler}: {{shell: "echo other >&2; exit 7"}}{closing}
"""
    )
    failure = ran.result.failure
    assert failure is not None
    name = "on_failure" if not closing else "on_exit_code:2"
    assert failure.message == f"exit code 2: mine\n{name} failed as well: exit code 7: other"
    assert (failure.kind, failure.exit_code) == ("exit", 2)


# ── long outputs ─────────────────────────────────────────────────────────

HALVES = [
    # what is asked for after a step that printed too much
    ("shell: printf %s ${last.output} | wc -c", ""),
    ("shell: printf %s ${shell.stdout} | wc -c", ""),
    ("shell: printf %s ${last.output} | wc -c", "use"),
]
TOO_LONG = "a step before printed more than 16,777,216 bytes, which cannot be put into a template; write it to a file"


@pytest.mark.parametrize(("asking", "through"), HALVES)
def test_the_beginning_of_a_long_output_is_never_taken_for_the_whole(
    place: Place, asking: str, through: str
) -> None:
    first = "{use: long}" if through else f'{{shell: "{LONG}"}}'
    ran = place.run(
        f"""
blocks: {{long: {{steps: [{{shell: "{LONG}"}}]}}}}
steps:
  - {first}
  - {asking}
"""
    )
    assert ran.message == TOO_LONG


def test_what_else_there_is_to_know_of_a_long_output_can_be_asked_for(place: Place) -> None:
    ran = place.done(
        f"""
map:
  input: [1]
  steps: [{{shell: "{LONG}"}}]
reduce:
  - shell: "{LONG}; echo why >&2; exit 3"
    on_failure: {{shell: "echo ${{error.exit_code}} ${{error.stderr}} ${{last.success}}"}}
  - shell: echo ${{map.outputs:json}}
"""
    )
    assert ran.outputs["reduce/0/on_failure/0"] == "3 why false"
    assert ran.outputs["reduce/1"] == "[null]"


LOSING = [
    # a flow on a disk that is full before it has printed all                      exit code
    (f'- {{shell: "{LONG}", output_file: out.txt}}\n',                              1),
    (f'map: {{input: {{command: "{LONG}"}}, steps: [{{shell: "true"}}]}}\n',         2),
]  # fmt: skip


@pytest.mark.parametrize(("flow", "code"), LOSING)
def test_what_does_not_fit_on_the_disk_is_not_taken_for_the_whole(
    place: Place, flow: str, code: int
) -> None:
    place.write("flow.yaml", flow)
    ended = place.plait(
        "run", "flow.yaml", before=["bash", "-c", 'ulimit -f 18000; exec "$@"', "-"]
    )
    assert ended.returncode == code
    assert "it could not be written: File too large" in ended.stdout
    assert not (place.root / "out.txt").exists()


def bound(script: str) -> BoundScript:
    return bind_shell(compile_template(script), {})


def test_a_run_keeps_no_more_long_outputs_than_there_is_room_for_and_says_so_once(
    tmp_path: Path,
) -> None:
    notes: list[str] = []
    stop = StopSignal()
    fakes = LocalProcesses(str(tmp_path / "run"), most_kept=45_000_000, note=notes.append)

    def printed() -> str | None:
        env = {"PATH": "/usr/bin:/bin"}
        how: Any = {"shell": "sh", "cwd": str(tmp_path), "env": env, "stdin": b"", "timeout": 60}
        how["more_env"] = {}
        ended = finish(fakes.shell(bound(LONG), stop=stop, **how))
        assert ended.is_truncated
        return ended.stdout_file

    files = [printed() for _ in range(4)]
    assert [file is not None for file in files] == [True, True, False, False]
    kept = sorted((tmp_path / "run" / "output").iterdir())
    assert [str(path) for path in kept] == sorted(file for file in files if file)
    assert notes == [
        f"outputs that are too long for the journal are no longer kept: {tmp_path}/run/output has 42 MiB"
    ]


# ── a file that changes between two run attempts ─────────────────────────

BLOCK = "blocks: {b: {with: [t], steps: [{shell: 'echo ${t} >> $LEDGER'}]}}\n"
AROUND = [
    # what stands before the step that fails                                        what becomes of it                  steps that changed
    (BLOCK + "steps:\n  - {use: b, with: {t: ONE}}",                                ("ONE", "TWO"),                     ["steps/0/block/0"]),
    (BLOCK + "vars: {v: ONE}\nsteps:\n  - {use: b, with: {t: '${v}'}}",             ("ONE", "TWO"),                     ["steps/0/block/0"]),
    (BLOCK + "steps:\n  - {use: b, with: {t: x}, env: {E: ONE}}",                   ("ONE", "TWO"),                     ["steps/0/block/0"]),
    (BLOCK + "steps:\n  - {use: b, with: {t: x}, metadata: {env: {E: ONE}}}",       ("ONE", "TWO"),                     ["steps/0/block/0"]),
    (BLOCK + "steps:\n  - {use: b, with: {t: x}, working_dir: one}",                ("dir: one", "dir: two"),           ["steps/0/block/0"]),
    (BLOCK + "steps:\n  - {use: b, with: {t: ONE}, on_success: {shell: 'true'}}",   ("ONE", "TWO"),                     ["steps/0/run/block/0"]),
    (BLOCK + "steps:\n  - {foreach: [1], do: [{use: b, with: {t: x}}], env: {E: ONE}}", ("ONE", "TWO"),
     ["steps/0/each/items", "steps/0/each/item:*/0/block/0"]),
    ("steps:\n  - {foreach: [1], do: [{shell: 'echo ${item} >> $LEDGER'}], env: {E: ONE}}", ("ONE", "TWO"),
     ["steps/0/each/items", "steps/0/each/item:*/0"]),
    ("steps:\n  - {foreach: [1], do: [{shell: 'echo ${item} >> $LEDGER'}], working_dir: one}", ("dir: one", "dir: two"),
     ["steps/0/each/items", "steps/0/each/item:*/0"]),
    ("steps:\n  - {foreach: [1, 2], do: [{shell: 'echo ${item} >> $LEDGER'}], max_items: 1}", ("max_items: 1", "max_items: 2"),
     ["steps/0/each/items"]),
]  # fmt: skip


@pytest.mark.parametrize(("before", "edit", "changed"), AROUND)
def test_what_reaches_steps_from_around_them_is_noticed_when_it_changes(
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    before: str,
    edit: tuple[str, str],
    changed: list[str],
) -> None:
    ledger = place.write("ledger", "")
    monkeypatch.setenv("LEDGER", str(ledger))
    for folder in ("one", "two"):
        place.write(f"{folder}/here", "")
    flow = f"{before}\n  - {{shell: 'test -e ready'}}\n"
    run = place.run(flow).result.run
    done = place.text("ledger")
    assert done
    place.write("ready", "")
    place.write("flow.yaml", flow.replace(*edit))
    with pytest.raises(InputError) as caught:
        place.resume(run)
    assert re.findall(r"(steps/\S+) \(", caught.value.what) == changed
    assert place.text("ledger") == done
    assert place.resume(run, accept_changes=True).result.status == "done"
    assert len(place.text("ledger")) > len(done)  # it was done again


def test_what_reaches_the_rounds_of_an_item_is_noticed_when_it_changes(place: Place) -> None:
    flow = """
map:
  input: [a]
  id: ${item}
  steps: [{foreach: [1], do: [{shell: 'echo $E >> ledger'}], env: {E: ONE}}]
reduce: [{shell: 'test -e ready'}]
"""
    run = place.run(flow).result.run
    place.write("ready", "")
    place.write("flow.yaml", flow.replace("ONE", "TWO"))
    with pytest.raises(InputError) as caught:
        place.resume(run)
    assert re.findall(r"(map/\S+) \(", caught.value.what) == [
        "map/item:*/0/each/items",
        "map/item:*/0/each/item:*/0",
    ]
    assert place.resume(run, accept_changes=True).result.status == "done"
    assert place.text("ledger").split() == ["ONE", "TWO"]


AFTER = [
    # what follows the action                                what becomes of it                                       the message
    ("validate: 'test 1 = 1'",                               "validate: 'test 2 = 2'",                                "steps/a/check/0 (test 2 = 2)"),
    ("on_success: {shell: echo one}",                        "on_success: {shell: echo two}",                         "steps/a/on_success/0 (echo two)"),
    ("on_failure: {max_attempts: 1, shell: touch mended}",   "on_failure: {max_attempts: 1, shell: touch ./mended}",  "steps/a/on_failure/0 (touch ./mended)"),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after", "change"), AFTER)
def test_what_follows_an_action_is_noticed_before_anything_runs(
    place: Place, before: str, after: str, change: str
) -> None:
    action = "test -e mended" if "mended" in before else "true"
    flow = f"steps:\n  - {{id: a, shell: 'echo a >> ledger; {action}', {before}}}\n  - {{shell: 'test -e ready'}}\n"
    run = place.run(flow).result.run
    done = place.text("ledger")
    place.write("ready", "")
    place.write("flow.yaml", flow.replace(before, after))
    ended = place.plait("resume", run)
    assert ended.returncode == 2
    assert f"since these steps were done: {change}\n" in ended.stderr
    assert place.text("ledger") == done


def test_a_changed_check_of_a_block_is_noticed_before_anything_runs(place: Place) -> None:
    flow = """
blocks: {b: {steps: [{shell: 'echo block >> ledger'}]}}
steps:
  - {use: b, validate: 'echo one >> ledger'}
  - {shell: 'test -e ready'}
"""
    run = place.run(flow).result.run
    place.write("ready", "")
    place.write("flow.yaml", flow.replace("one", "two"))
    with pytest.raises(InputError) as caught:
        place.resume(run)
    assert caught.value.what.endswith(": steps/0/check/0 (echo two >> ledger)")
    assert place.resume(run, accept_changes=True).result.status == "done"
    assert place.text("ledger").split() == ["block", "one", "two"]


# ── a retry that is interrupted ──────────────────────────────────────────

FOUR = """
setup: [{id: begin, shell: 'echo begin >> ledger'}]
map:
  input: [a, b, c, d]
  id: ${item}
  max_parallel: 1
  steps:
    - {id: before, shell: 'echo before-${item} >> ledger'}
    - {id: work, shell: 'echo one-${item} >> ledger; test ${item} = a || test ${item} = b'}
reduce: [{id: end, shell: 'echo end >> ledger'}]
"""
MENDED = FOUR.replace("one-${item} >> ledger; test ${item} = a || test ${item} = b",
                      "two-${item} >> ledger; test ${item} = c || test -e ready || sleep 60")  # fmt: skip


def interrupted_retry(place: Place, run: str, **options: Any) -> None:
    """`plait retry`, ended while the last item is worked on."""
    stop = StopSignal()

    def watch(reported: EventRecord) -> None:
        if isinstance(reported.event, StepStarted) and reported.event.path == "map/item:d/work":
            stop.ask()

    observers = RunObservers([watch], stop)
    assert (
        retry_flow(run, project=str(place.root), observers=observers, **options).status
        == "interrupted"
    )
    (place.root / "ledger").unlink()
    place.write("ready", "")


def test_a_retry_with_an_edited_file_goes_on_where_it_was_interrupted(place: Place) -> None:
    run = place.run(FOUR).result.run
    place.write("flow.yaml", MENDED)
    interrupted_retry(place, run)
    resumed = place.resume(run)
    assert (resumed.result.status, resumed.result.counts["successful"]) == ("done", 4)
    assert place.text("ledger").split() == ["two-d", "end"]
    assert place.resume(run).result.status == "done"  # and now nothing is left to do
    assert place.text("ledger").split() == ["two-d", "end"]


def test_a_retry_with_another_file_goes_on_with_that(place: Place) -> None:
    run = place.run(FOUR).result.run
    place.write("other.yaml", MENDED)
    interrupted_retry(place, run, file=str(place.root / "other.yaml"))
    shown = plan_resume(run, project=str(place.root))
    assert [one.path for one in shown if not one.replayed] == ["map/item:d/work", "reduce/end"]
    assert place.resume(run).result.counts["successful"] == 4
    assert place.text("ledger").split() == ["two-d", "end"]
    assert place.resume(run).result.status == "done"


CHANGED_SINCE = [
    # what has changed since the retry     steps that changed                what is done when that is accepted
    (("two-", "three-"),                   ["map/item:*/work"],              ["three-a", "three-b", "three-c", "three-d", "end"]),
    (("before-", "earlier-"),              ["map/item:*/before"],
     [f"{step}-{item}" for item in "abcd" for step in ("earlier", "two")] + ["end"]),
    (("echo end", "echo END"),             ["reduce/end"],                   ["two-d", "END"]),
    (("echo begin", "echo BEGIN"),         ["setup/begin"],
     ["BEGIN", *(f"{step}-{item}" for item in "abcd" for step in ("before", "two")), "end"]),
]  # fmt: skip


@pytest.mark.parametrize(("edit", "changed", "done"), CHANGED_SINCE)
def test_a_change_since_a_retry_is_noticed_and_holds_for_all_items_once_it_is_accepted(
    place: Place, edit: tuple[str, str], changed: list[str], done: list[str]
) -> None:
    run = place.run(FOUR).result.run
    place.write("flow.yaml", MENDED)
    interrupted_retry(place, run)
    place.write("flow.yaml", MENDED.replace(*edit))
    with pytest.raises(InputError) as caught:
        place.resume(run)
    assert re.findall(r"(\w+/\S+) \(", caught.value.what) == changed
    assert not (place.root / "ledger").exists()
    assert place.resume(run, accept_changes=True).result.status == "done"
    assert place.text("ledger").split() == done
    assert place.resume(run).result.status == "done"
    assert place.text("ledger").split() == done


def test_what_is_accepted_after_a_retry_by_another_text_is_done_in_every_item(place: Place) -> None:
    flow = """
map:
  input: [a, b, c]
  steps:
    - {id: one, shell: 'echo old-${item}', capture: x}
    - {id: two, shell: 'test ${item} != c && echo ${x}'}
reduce: [{id: all, shell: 'echo ${map.outputs}'}]
"""
    run = place.run(flow).result.run
    flow = flow.replace("test ${item} != c &&", "test -n ${item} &&")
    place.write("flow.yaml", flow)
    assert place.retry(run).result.counts["successful"] == 3
    for before, now in (("old-", "new-"), ("new-", "old-")):
        flow = flow.replace(before, now)
        place.write("flow.yaml", flow)
        with pytest.raises(InputError, match=r"map/item:\*/one"):
            place.resume(run)
        value = place.resume(run, accept_changes=True).result.value
        assert isinstance(value, dict)
        assert str(value["output"]).split() == [f"{now}{item}" for item in "abc"]
        assert place.resume(run).result.status == "done"


def test_items_to_which_an_interrupted_retry_did_not_come_can_be_retried_by_yet_another_text(
    place: Place,
) -> None:
    run = place.run(FOUR).result.run
    place.write("flow.yaml", MENDED)
    interrupted_retry(place, run)
    place.write("flow.yaml", MENDED.replace("two-", "three-"))
    assert place.retry(run).result.counts["successful"] == 4
    assert place.text("ledger").split() == ["three-d", "end"]
    with pytest.raises(InputError, match="no failed items"):
        place.retry(run)


@pytest.mark.parametrize("edited", [False, True])
def test_items_that_a_retry_with_the_same_text_did_not_reach_can_be_retried(
    place: Place, edited: bool
) -> None:
    waits = "test -e tried || exit 1; test ${item} != d || test -e ready || sleep 60"
    flow = MENDED.replace("test ${item} = c || test -e ready || sleep 60", waits)
    run = place.run(flow).result.run
    place.write("tried", "")
    interrupted_retry(place, run)
    again = "three-" if edited else "two-"
    place.write("flow.yaml", flow.replace("two-", again))
    with pytest.raises(InputError, match="no failed item is called 'x'"):
        place.retry(run, items=["x"])
    assert place.retry(run, items=["d"]).result.counts["successful"] == 4
    assert place.text("ledger").split()[-2:] == [f"{again}d", "end"]
    with pytest.raises(InputError, match="no failed items"):
        place.retry(run)


def test_all_that_a_retry_found_changed_outside_of_its_items_stays_done(place: Place) -> None:
    run = place.run(FOUR).result.run
    place.write(
        "flow.yaml", MENDED.replace("echo begin", "echo BEGIN").replace("before-", "earlier-")
    )
    interrupted_retry(place, run)
    assert place.resume(run).result.counts["successful"] == 4
    assert place.text("ledger").split() == ["two-d", "end"]


def test_items_that_a_retry_did_not_reach_belong_to_the_next_one(place: Place) -> None:
    run = place.run(FOUR).result.run
    place.write("flow.yaml", MENDED)
    interrupted_retry(place, run, items=["d"])
    place.write("flow.yaml", MENDED.replace("before-", "earlier-"))
    assert place.retry(run, items=["c"]).result.counts["successful"] == 4
    assert place.text("ledger").split() == ["earlier-c", "two-c", "earlier-d", "two-d", "end"]
    assert place.resume(run).result.status == "done"


def test_a_retry_by_the_same_text_leaves_no_item_out_of_what_changes_later(place: Place) -> None:
    flow = FOUR.replace("test ${item} = b", "test -e ready")
    run = place.run(flow).result.run
    place.write("ready", "")
    assert place.retry(run).result.counts["failed"] == 0
    place.write("flow.yaml", flow.replace("one-", "three-"))
    with pytest.raises(InputError):
        place.resume(run)
    (place.root / "ledger").unlink()
    assert place.resume(run, accept_changes=True).result.status == "done"
    assert place.text("ledger").split() == ["three-a", "three-b", "three-c", "three-d", "end"]


def test_an_item_that_was_retried_before_stays_done_when_another_one_is(place: Place) -> None:
    run = place.run(FOUR).result.run
    place.write("flow.yaml", MENDED)
    assert place.retry(run, items=["c"]).result.counts["failed"] == 1
    place.write("flow.yaml", MENDED.replace("two-", "three-"))
    place.write("ready", "")
    (place.root / "ledger").unlink()
    assert place.retry(run, items=["d"]).result.counts["successful"] == 4
    assert place.text("ledger").split() == ["three-d", "end"]
    assert place.resume(run).result.status == "done"


def test_ids_of_items_know_what_the_whole_file_knows(place: Place) -> None:
    flow = """
parameters: {p: {default: q}}
vars: {v: w}
setup: [{shell: echo s, capture_output: s}]
map: {input: [a], id: '${p}-${v}-${s}-${item}', steps: [{shell: 'echo ${item_id}'}]}
"""
    assert place.check(flow) == []
    assert place.done(flow).finished["map/0/0"].outcome.value["output"] == "q-w-s-a\n"  # type: ignore[union-attr]


def test_the_id_of_an_item_holds_no_secret(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_TOKEN", "s3cret/value")
    flow = """
secrets: {T: API_TOKEN}
parameters: {p: {type: string}}
map: {input: [a], id: '${T}-${p}-${item}', steps: [{shell: 'echo ${item_id}'}]}
"""
    ran = place.done(flow, inputs={"p": "s3cret/value"})
    assert ran.finished["map/0/0"].outcome.value["output"] == "%2A%2A%2A-%2A%2A%2A-a\n"  # type: ignore[union-attr]
    assert b"value-a" not in place.state


@pytest.mark.parametrize("name", ["item_id", "item_index", "item_total", "index", "total"])
def test_an_id_cannot_ask_for_what_is_known_only_when_all_items_are_found(
    place: Place, name: str
) -> None:
    flow = f"map: {{input: [a], id: '${{{name}}}', steps: [{{shell: 'true'}}]}}"
    assert [finding.problem.what for finding in place.check(flow)] == [f"unknown variable '{name}'"]


# ── a project in another place ───────────────────────────────────────────

HALF_DONE = """\
setup:
- {shell: "echo once >> began; echo seen", capture_output: seen}
map:
  input: items.json
  id: "${item}"
  steps: [{shell: "test -e go && echo ${item} >> did"}]
reduce:
- {shell: "echo ${seen} ${map.successful} > report"}
"""


@pytest.mark.parametrize("how", [Path.rename, copytree], ids=["moved", "copied"])
@pytest.mark.parametrize("again", ["resume", "retry"])
def test_a_run_goes_on_where_its_project_is_now(
    place: Place, how: Callable[[Path, Path], object], again: str
) -> None:
    place.write("items.json", ["a", "b"])
    run = place.run(
        HALF_DONE.replace("steps:", "error_policy: {on_item_failure: stop}\n  steps:")
    ).result.run
    now = Place(place.root.parent / "now")
    how(place.root, now.root)
    if how is copytree:  # another folder, which anybody could have made of what this one holds
        with pytest.raises(TrustError):
            now.resume(run)
        take_over(look_at(run, str(now.root)))
    now.write("go", "")
    ran = now.resume(run) if again == "resume" else now.retry(run)
    assert ran.result.status == "done"
    assert (now.text("began"), sorted(now.text("did").split())) == ("once\n", ["a", "b"])
    assert now.text("report") == "seen 2\n"
    assert not (place.root / "did").exists()
    (summary,) = flow_runs(str(now.root))
    assert summary.file == str(now.file)


def test_a_run_that_was_begun_in_a_project_by_a_relative_path_is_found_from_anywhere(
    place: Place,
) -> None:
    place.write("flow.yaml", "steps: [{shell: 'test -e ok'}]\n")
    assert place.plait("run", "flow.yaml", "--project", ".").returncode == 1
    copy = Place(place.root.parent / "copy")
    copytree(place.root, copy.root)
    copy.write("flow.yaml", "steps: [{shell: 'test -e ok && echo copy > made'}]\n")
    for one in (place, copy):
        one.write("ok", "")
        above = Place(one.root.parent)
        if one is copy:
            refused = above.plait("resume", "--project", one.root.name)
            command = refused.stderr.partition("take it over: plait ")[2].partition(";")[0]
            assert (refused.returncode, above.plait(*command.split()).returncode) == (3, 0)
        assert above.plait("resume", "--project", one.root.name).returncode == 0
    assert copy.text("made") == "copy\n"
    assert not (place.root / "made").exists()


def test_merge_steps_outside_of_a_repository_have_no_branches_and_no_commits(place: Place) -> None:
    place.done(
        """
map: {input: [1], steps: [{shell: 'true'}]}
merge: [{write_file: {path: said, content: "${merge.commit_count} ${merge.source_branch:-none} ${merge.worktree}"}}]
"""
    )
    assert place.text("said") == f"0 none {place.root}"
