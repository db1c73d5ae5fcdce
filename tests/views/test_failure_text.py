"""Messages about real runs: each failure once, only what helps, and nothing outside of the flow."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runs.stories import Place, new_place

DEADLINE = 30.0


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return new_place(tmp_path, monkeypatch)


def printed_lines(place: Place, *command: str) -> list[str]:
    return place.plait(*command).stdout.splitlines()


def after(lines: list[str], word: str) -> list[str]:
    """What stands behind a word at the beginning of a line."""
    return [
        line.strip().removeprefix(word).strip() for line in lines if line.strip().startswith(word)
    ]


STOPPED = [
    # policy                      does resume go on?
    ("max_failures: 2",           False),
    ("failure_threshold: 0.1",    False),
    ("on_item_failure: stop",     True),
]  # fmt: skip


@pytest.mark.parametrize(("policy", "goes_on"), STOPPED)
def test_to_go_on_is_offered_where_that_is_possible(
    place: Place, policy: str, goes_on: bool
) -> None:
    items = list(range(10))
    place.write(
        "flow.yaml",
        f"map: {{input: {items}, max_parallel: 1, {policy}, steps: [{{shell: exit 1}}]}}\n",
    )
    ran = printed_lines(place, "run", "flow.yaml")
    run = after(ran, "flow: run ")[0].partition(",")[0]
    more = "allow more failures in the file, then "
    expected = [f"{'' if goes_on else more}plait resume {run}"]
    assert after(ran, "resume") == expected
    assert after(printed_lines(place, "show"), "resume") == expected
    assert after(ran, "retry") == [f"plait retry {run} --failed"]


def test_what_is_looked_at_after_a_map_stopped_is_the_item_that_failed(place: Place) -> None:
    place.write(
        "flow.yaml",
        "map: {input: [a, b], max_parallel: 1, max_failures: 1, steps: [{shell: echo why; exit 1}]}\n",
    )
    run = after(printed_lines(place, "run", "flow.yaml"), "flow: run ")[0].partition(",")[0]
    shown = printed_lines(place, "show")
    assert after(shown, "look at it") == [f"plait logs {run} a"]
    assert printed_lines(place, *after(shown, "look at it")[0].split()[1:])[1:] == ["why"]


def test_a_resumed_run_names_what_to_do_about_items_that_failed_before(place: Place) -> None:
    place.write(
        "flow.yaml",
        "map: {input: [1, 2], steps: [{shell: 'test ${item} = 1'}]}\nreduce: [{shell: test -e ok}]\n",
    )
    run = after(printed_lines(place, "run", "flow.yaml"), "flow: run ")[0].partition(",")[0]
    place.write("ok", "")
    again = printed_lines(place, "resume", "last")
    assert after(again, "look at it") == [f"plait show {run}"]
    assert after(again, "retry") == [f"plait retry {run} --failed"]
    assert after(printed_lines(place, "retry", "--failed"), "retry") == [
        f"plait retry {run} --failed"
    ]


def test_a_failure_inside_an_item_is_listed_once_under_the_item(place: Place) -> None:
    place.write(
        "flow.yaml",
        """\
map:
  input: [{name: x}, {name: y}]
  steps: [{foreach: ['in ${item.name}'], do: [{shell: 'test ${item} != "in x"'}]}]
""",
    )
    ran = printed_lines(place, "run", "flow.yaml")
    end = next(at for at, line in enumerate(ran) if line.startswith("! finished in "))
    assert after(ran[end:], "✗") == ["x   stopped"]


def test_a_failure_inside_a_step_is_listed_once_under_the_step(place: Place) -> None:
    place.write("flow.yaml", "steps: [{id: each, foreach: [x], do: [{shell: exit 1}]}]\n")
    ran = printed_lines(place, "run", "flow.yaml")
    end = next(at for at, line in enumerate(ran) if line.startswith("✗ failed"))
    assert after(ran[end + 1 :], "✗") == ["each   stopped"]


def test_what_looks_at_the_repository_is_no_part_of_the_flow(place: Place) -> None:
    place.repository()
    place.write(
        "flow.yaml", "setup: [{shell: 'true'}]\nmerge: [{shell: 'echo ${merge.commit_count}'}]\n"
    )
    ran = printed_lines(place, "run", "flow.yaml")
    assert [line for line in ran if "beginning" in line] == []
    assert ran[-2].startswith("✓ finished in ")
    assert ran[-2].endswith(" s   2 steps")
    assert ran[-1] == "  0"
    assert [line for line in printed_lines(place, "show") if "beginning" in line] == []


RETRIED = """\
map:
  input: [a, b]
  id: ${item}
  steps: [{shell: '[ ${item} != b ] || { [ -e again ] && touch here && sleep 60; }'}]
reduce: [{shell: echo report}]
"""


def test_what_follows_items_that_are_being_retried_is_not_done(place: Place) -> None:
    run = place.run(RETRIED).result.run
    assert after(printed_lines(place, "show", run), "✓ reduce")
    place.write("again", "")
    retry = subprocess.Popen(
        [sys.executable, "-m", "plait", "retry", run, "--failed"],
        cwd=place.root,
        stdout=subprocess.DEVNULL,
    )
    end = time.monotonic() + DEADLINE
    while not (place.root / "here").exists() and time.monotonic() < end:
        time.sleep(0.01)
    os.kill(retry.pid, signal.SIGINT)
    assert retry.wait(DEADLINE) == 130
    shown = printed_lines(place, "show", run)
    assert after(shown, "■ map") == ["1/2"]
    assert after(shown, "○ reduce") == ["not started"]
    assert [line for line in shown if "echo report" in line] == []


def test_a_dry_run_says_that_a_changed_file_would_be_refused(place: Place) -> None:
    flow = "steps: [{id: a, shell: echo ONE}, {id: b, shell: 'test -e ok'}]\n"
    run = place.run(flow).result.run
    assert place.plait("resume", "--dry-run").stderr == ""
    place.write("flow.yaml", flow.replace("ONE", "TWO"))
    dry = place.plait("resume", "--dry-run")
    assert dry.stderr == (
        "note: plait resume would refuse this: "
        "the file has changed since these steps were done: steps/a (a)\n"
        f"fix: plait resume {run} --accept-changes does them again, and all that follows them; "
        "or put the file back as it was\n"
    )
    assert dry.returncode == 0
    assert "echo TWO" in dry.stdout
    accepted = place.plait("resume", "--dry-run", "--accept-changes")
    assert (accepted.stdout, accepted.stderr) == (dry.stdout, "")


ENDED = [
    # flow                                                                          why it ended
    ("limits: {steps: 2}\nsteps: [{shell: exit 3, continue_on_error: true}, {shell: echo two}, {shell: echo three}]\n",
     "the run has reached its limit of 2 steps (2 used)"),
    ("hooks: [{id: h, event: step_finished, verb: abort, why: enough}]\n"
     "steps: [{shell: exit 3, continue_on_error: true}, {shell: echo two}]\n",
     "the hook 'h' says abort: enough"),
    ("timeout: 1\nsteps: [{shell: exit 3, continue_on_error: true}, {shell: sleep 9}]\n", "took longer than 1 s"),
    ("limits: {steps: 2}\nmap: {input: [1, 2, 3], max_parallel: 1, steps: [{shell: 'exit ${item}'}]}\n",
     "the run has reached its limit of 2 steps (2 used)"),
    ("hooks: [{id: h, event: step_failed, verb: abort, why: enough}]\nsteps: [{shell: exit 3}]\n",
     "the hook 'h' says abort: enough"),
    ("steps: [{shell: 'exit 3'}]\n", ""),
]  # fmt: skip


@pytest.mark.parametrize(("flow", "why"), ENDED)
def test_run_and_show_say_why_a_run_ended_also_if_something_else_had_failed(
    place: Place, flow: str, why: str
) -> None:
    place.write("flow.yaml", flow)
    ran, shown = printed_lines(place, "run", "flow.yaml"), printed_lines(place, "show")
    if why:
        assert (ran.count(f"  {why}"), shown.count(f"  {why}")) == (1, 1)
    else:
        assert "  ✗ exit 3   exit 3" in ran
        assert not [line for line in (*ran, *shown) if line == "  exit 3"], (
            "what is listed is not said twice"
        )


def test_show_says_why_a_part_failed_that_no_step_of_it_says(place: Place) -> None:
    place.write(
        "flow.yaml", "map: {input: [1], on_item_failure: stop, steps: [{shell: 'exit 3'}]}\n"
    )
    printed_lines(place, "run", "flow.yaml")
    assert "  item 1 failed, and the flow stops at the first failure" in printed_lines(
        place, "show"
    )


def test_why_a_map_found_no_items_is_shown_once(place: Place) -> None:
    place.write("flow.yaml", "map: {input: nix.json, steps: [{shell: 'true'}]}\n")
    printed_lines(place, "run", "flow.yaml")
    assert "\n".join(printed_lines(place, "show")).count("there is no file 'nix.json'") == 1


def test_commands_to_type_name_the_project_where_that_is_another_one(place: Place) -> None:
    place.write(
        "flow.yaml",
        "map: {input: [1, 2], steps: [{shell: 'test ${item} = 1'}]}\nreduce: [{shell: 'false'}]\n",
    )
    above = Place(place.root.parent)
    ran = printed_lines(above, "run", "project/flow.yaml", "--project", "project")
    run = after(ran, "flow: run ")[0].partition(",")[0]
    typed = {word: after(ran, word) for word in ("look at it", "retry", "resume")}
    assert typed == {
        "look at it": [f"plait logs {run} false --project project"],
        "retry": [f"plait retry {run} --failed --project project"],
        "resume": [f"plait resume {run} --project project"],
    }
    for (command,) in typed.values():
        assert above.plait(*command.split()[1:]).returncode in (0, 1)
    shown = printed_lines(above, "show", "--project", "project")
    assert after(shown, "resume") == typed["resume"]
    retry, resume = (f"`{typed[word][0]}`" for word in ("retry", "resume"))
    markdown = printed_lines(above, "show", "--project", "project", "--markdown")
    assert markdown[-1] == f"Continue it with {retry}, or {resume}."


def test_the_command_after_a_stop_names_the_project_that_was_given(place: Place) -> None:
    stop = f"cd .. && {sys.executable} -m plait stop --project project > said; sleep 60"
    place.write("flow.yaml", f"steps: [{{shell: 'test -e ../said || {{ {stop}; }}'}}]\n")
    run = after(printed_lines(place, "run", "flow.yaml"), "flow: run ")[0].partition(",")[0]
    command = (place.root.parent / "said").read_text().partition("Continue it with:  ")[2].strip()
    assert command == f"plait resume {run} --project project"
    assert Place(place.root.parent).plait(*command.split()[1:]).returncode == 0


def test_more_failures_are_shown_of_the_run_that_was_named(place: Place) -> None:
    place.write("flow.yaml", f"map: {{input: {list(range(60))}, steps: [{{shell: exit 1}}]}}\n")
    ran = printed_lines(place, "run", "flow.yaml")
    run = after(ran, "flow: run ")[0].partition(",")[0]
    assert after(ran, "more failures are counted and not printed:") == [f"plait show {run}"]
    assert after(printed_lines(place, "show"), "… and 10 more:") == [f"plait show {run} --json"]
    assert after(printed_lines(place, "show", "--markdown"), "… and 40 more:") == [
        f"`plait show {run} --json`"
    ]
