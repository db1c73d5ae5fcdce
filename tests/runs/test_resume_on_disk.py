"""Resumed runs in real projects: with a journal on disk, after a kill, with hooks of every layer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import plait
from plait import Ensemble, EnsembleError, Task, TaskOutput
from plait.app.runs import flow_runs, flow_store
from plait.views.progress import replay_events
from runs.stories import Place, new_place

NOTE = """\
__version__ = "1.0.0"
__tool_type__ = "python"
__executor_id__ = "core/runtimes/python/function"
__tool_description__ = "Keep a note."

def execute(params, project_path):
    import os, signal, time
    text = str(params["text"])
    with open(project_path + "/notes", "a") as file:
        file.write(text + "\\n")
    mark = project_path + "/die-at-" + text
    if os.path.exists(mark):
        os.unlink(mark)
        os.kill(os.getpid(), signal.SIGKILL)
    if os.path.exists(project_path + "/wait-at-" + text):
        os.unlink(project_path + "/wait-at-" + text)
        time.sleep(60)
    return "kept " + text
"""
JUDGE = "---\n---\nJudge.\n"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A user with a tool and a directive of his own, and a model that is played back."""
    made = new_place(tmp_path, monkeypatch, PLAIT_PROVIDER="replay")
    for name, text in (("tools/team/note.py", NOTE), ("directives/judge.md", JUDGE)):
        file = tmp_path / "home" / ".ai" / name
        file.parent.mkdir(parents=True, mode=0o700)
        file.write_text(text)
    return made


def script(place: Place, *exchanges: tuple[str | None, Any]) -> None:
    """What the model answers to a question that ends with a text, each at 12 tokens."""
    used = {"input": 10, "output": 2, "cost": 0.5}
    answers = [
        {
            "ask": ask,
            "answer": {"usage": used, **({"text": answer} if isinstance(answer, str) else answer)},
        }
        for ask, answer in exchanges
    ]
    place.write("replay.yaml", answers)


def notes(text: str) -> dict[str, Any]:
    return {"uses": [{"name": "team__note", "arguments": {"text": text}}]}


def last_line(printed: str) -> str:
    return next(
        line for line in printed.splitlines() if line.startswith(("✓ finished", "✗ failed"))
    )


TALK = """\
---
permissions: [team/note]
limits: {turns: %d}
hooks: [{id: j, event: tool_result, action: {tool: "directive:judge"}}]
---
Talk.
"""


def test_a_kill_between_turns_forgets_nothing_that_was_used(place: Place) -> None:
    place.write("talk.md", TALK % 4)
    script(
        place,
        ("Talk.", notes("a")),
        ("kept a", notes("b")),
        ("kept b", "The end."),
        ("Judge.", "Fine."),
        ("Judge.", "Fine."),
    )
    place.write("die-at-b", "")
    assert place.plait("run", "talk.md").returncode == -9
    run = flow_runs(str(place.root))[0].id
    for _ in range(2):
        stopped = place.plait("resume", run)
        assert "'talk' has reached its limit of 4 turns (4 used)" in stopped.stdout
        assert last_line(stopped.stdout).endswith("4 turns, 48 tokens, $2.00")
    assert place.text("notes") == "a\nb\nb\n", (
        "the one that was killed is called again, and no other"
    )
    place.write("talk.md", TALK % 9)
    done = place.plait("resume", run)
    assert last_line(done.stdout).endswith("5 turns, 60 tokens, $2.50")
    assert "5 turns, 60 tokens, $2.50, 2 calls" in place.plait("show", run).stdout


HOOK = """\
hooks:
  - id: told
    event: turn_finished
    actions:
      - {tool: "directive:judge"}
      - {tool: team/note, params: {text: "${turn} ${step.name} ${result.output}"}}
"""


@pytest.mark.parametrize("layer", ["user", "project", "flow"])
def test_hooks_of_every_layer_catch_up(place: Place, layer: str) -> None:
    flow = "limits: {turns: %d}\nsteps: [{id: ask, prompt: one, output_file: out.txt}]\n"
    if layer == "user":
        config = place.root.parent / "home" / ".ai" / "config"
        config.mkdir(mode=0o700)
        (config / "hooks.yaml").write_text(HOOK)
    elif layer == "project":
        from plait.app.toolbox import toolbox

        place.write(".ai/config/hooks.yaml", HOOK)
        toolbox(str(place.root)).trust.trust_project(origin="test")
    else:
        flow = HOOK + flow
    script(place, ("one", "An answer."), ("Judge.", "Fine."))
    stopped = place.run(flow % 1)
    assert stopped.message == "the run has reached its limit of 1 turn (1 used)"
    assert not (place.root / "out.txt").exists()
    place.write("flow.yaml", flow % 9)
    done = place.resume(stopped.result.run)
    assert (done.result.status, place.text("out.txt")) == ("done", "An answer.")
    assert place.text("notes") == "1 ask An answer.\n"
    stdout = place.plait("logs", stopped.result.run).stdout
    assert re.search(r"── steps/ask/turn:1 .* 12 tokens, \$0\.50 .*\nAn answer\.\n", stdout), stdout
    assert "usage   2 turns, 24 tokens, $1.00" in place.plait("show", stopped.result.run).stdout


def test_what_a_hook_was_to_be_reported_is_recorded_without_secrets(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "s3cr3t-value")
    flow = (
        HOOK + "secrets: {T: TOKEN}\nlimits: {turns: %d}\nsteps: [{id: ask, prompt: 'one ${T}'}]\n"
    )
    script(place, ("one ***", "It is s3cr3t-value."), ("Judge.", "Fine."))
    stopped = place.run(flow % 1)
    assert stopped.message == "the run has reached its limit of 1 turn (1 used)"
    state = b"".join(
        p.read_bytes() for p in (place.root / ".ai" / "state").rglob("*") if p.is_file()
    )
    assert b"s3cr3t-value" not in state
    assert b"It is ***." in state
    place.write("flow.yaml", flow % 9)
    done = place.resume(stopped.result.run)
    assert (done.result.status, place.text("notes")) == ("done", "1 ask It is ***.\n")


XML = """\
# Talk

```xml
<directive name="talk" version="1.0.0">
  <metadata>
    <limits turns="%d" />
    <permissions><execute><tool>team/note</tool></execute></permissions>
    <hooks><hook><id>j</id><event>turn_finished</event><action tool="directive:judge" /></hook></hooks>
  </metadata>
  <inputs><input name="who" type="string" required="true">whom</input></inputs>
</directive>
```

Greet {input:who}.
"""


def test_limits_and_hooks_of_an_xml_head_hold_in_every_run_attempt(place: Place) -> None:
    place.write("talk.md", XML % 1)
    script(place, ("Greet Ada.", "Hello."), ("Judge.", "Fine."))
    assert place.plait("run", "talk.md", "-i", "who=Ada", "--prompt-only").stdout == "Greet Ada.\n"
    place.plait("run", "talk.md", "-i", "who=Ada")
    stopped = place.plait("resume")
    assert "'talk' has reached its limit of 1 turn (1 used)" in stopped.stdout
    place.write("talk.md", XML % 2)
    done = place.plait("resume")
    assert last_line(done.stdout).endswith("2 turns, 24 tokens, $1.00")


class Tried:
    """A function that fails until it is mended."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.is_mended = False

    def do(self, task: Task, context: Sequence[TaskOutput]) -> str:  # noqa: ARG002
        self.ran.append(str(task.name))
        if task.name == "b" and not self.is_mended:
            raise ValueError("not yet")
        return str(task.name)


@pytest.mark.parametrize("workflow", ["sequential", "parallel"])
def test_an_ensemble_in_python_with_limits_goes_on(
    place: Place, monkeypatch: pytest.MonkeyPatch, workflow: Any
) -> None:
    monkeypatch.chdir(place.root)
    tried = Tried()
    first = Task("a", handler=tried.do, name="a")
    second = Task("b", handler=tried.do, name="b", context=[first])
    third = Task("c", handler=tried.do, name="c", context=[second])
    ensemble = Ensemble(
        [first, second, third], workflow=workflow, limits={"seconds": 600, "steps": 3}
    )
    with pytest.raises(EnsembleError) as caught:
        ensemble.run()
    output = caught.value.output
    assert isinstance(output, plait.EnsembleOutput)
    tried.is_mended = True
    assert ensemble.run(resume=output.run).raw == "c"
    assert tried.ran == ["a", "b", "b", "c"]


SLOW = [
    # event           what it is about
    ("step_finished", "steps: [{tool: team/note, params: {text: a}}]\n"),
    ("turn_finished", "steps: [{id: ask, prompt: Judge., output_file: out.txt}]\n"),
    ("tool_result",   "steps: [{prompt: {prompt: Talk., tools: [team/note]}}]\n"),
    ("step_finished", "tasks: [{id: a, description: a, tool: team/note, params: {text: a}}]\n"),
]  # fmt: skip


@pytest.mark.parametrize(("event", "text"), SLOW)
def test_what_is_done_stays_done_when_the_time_of_the_flow_ends_inside_a_hook(
    place: Place, event: str, text: str
) -> None:
    hooks = f"hooks: [{{id: h, event: {event}, action: {{tool: team/note, params: {{text: heard}}}}}}]\n"
    script(place, ("Judge.", "Fine."), ("Talk.", notes("a")), ("kept a", "The end."))
    place.write("wait-at-heard", "")
    late = place.run(f"timeout: 2\n{hooks}{text}")
    assert late.message == "took longer than 2 s"
    place.write("flow.yaml", f"timeout: 60\n{hooks}{text}")
    done = place.resume(late.result.run)
    assert done.result.status == "done", done.message
    assert place.text("notes").split().count("a") == ("Judge." not in text)
    assert place.text("notes").split()[-2:] == ["heard", "heard"]
    with flow_store(str(place.root)).open(late.result.run, write=False) as opened:
        asked = replay_events(opened.journal.events()).usage.turns
    assert asked == text.count("Judge.") + 2 * text.count("Talk.")


# ── the end of a run ─────────────────────────────────────────────────────

ENDED = "hooks: [{id: e, event: run_finished, action: {tool: team/note, params: {text: 'end ${result.output}'}}}]\n"
DONE = {
    "steps": ("f.yaml", "steps: [{tool: team/note, params: {text: a}}]\n"),
    "map": ("f.yaml", "map: {input: [1], steps: [{tool: team/note, params: {text: '${item}'}}]}\n"),
    "graph": ("f.yaml", "start: a\nnodes: {a: {tool: team/note, params: {text: a}}}\n"),
    "ensemble": (
        "f.yaml",
        "tasks: [{id: a, description: a, tool: team/note, params: {text: a}}]\n",
    ),
    "directive": ("f.md", "Talk.\n"),
}


@pytest.mark.parametrize("host", DONE)
def test_the_end_of_a_run_is_reported_once_and_again_when_it_ends_anew(
    place: Place, host: str
) -> None:
    file, text = DONE[host]
    text = f"---\n{ENDED}---\n{text}" if file.endswith(".md") else ENDED + text
    script(place, ("Talk.", "Yes."), ("Talk more.", "More."))
    place.write(file, text)
    place.plait("run", file)
    reported = place.text("notes")
    assert reported.count("end ") == 1
    for _ in range(2):
        assert last_line(place.plait("resume", "last").stdout).startswith("✓ finished")
    assert place.text("notes") == reported
    place.write(
        file,
        text.replace("text: a", "text: b").replace("'${item}'", "b").replace("Talk.", "Talk more."),
    )
    assert last_line(place.plait("resume", "--accept-changes").stdout).startswith("✓ finished")
    assert place.text("notes").count("end ") == 2


def test_the_end_of_a_directive_knows_its_limits(place: Place) -> None:
    script(place, ("Talk.", "Yes."))
    hooks = ENDED.replace("end ${result.output}", "${limits.turns} ${limits.depth}")
    place.write("f.md", f"---\nlimits: {{turns: 9, depth: 2}}\n{hooks}---\nTalk.\n")
    place.plait("run", "f.md")
    assert place.text("notes").split() == ["9", "2"]


def test_the_end_of_a_run_is_reported_in_a_time_of_its_own(place: Place) -> None:
    """What is done is not undone because somebody who hears of it is slow."""
    place.write(
        "f.yaml",
        "timeout: 1.5\nhooks: [{id: e, event: run_finished, action: {tool: team/slow}}]\n"
        "steps: [{tool: team/note, params: {text: a}}]\n",
    )
    tool(
        place,
        "slow",
        NOTE.replace("import os, signal, time", "import time; time.sleep(2); return 1"),
    )
    assert last_line(place.plait("run", "f.yaml").stdout).startswith("✓ finished")


@pytest.mark.parametrize(
    "more",
    ["action: {tool: team/broken}", "condition: {path: path, op: gt, value: 3}, verb: abort"],
)
def test_a_gate_that_could_not_answer_is_asked_again_in_a_later_run_attempt(
    place: Place, more: str
) -> None:
    tool(place, "broken", NOTE.replace("import os, signal, time", "raise RuntimeError('down')"))
    steps = "steps: [{tool: team/note, params: {text: a}}, {tool: team/note, params: {text: b}}]\n"
    place.write("f.yaml", f"hooks: [{{id: g, event: step_finished, gate: true, {more}}}]\n{steps}")
    for command in (["run", "f.yaml"], ["resume"], ["resume"]):
        late = place.plait(*command)
        assert "the gate 'g' could not answer" in late.stdout + late.stderr
        assert place.text("notes").split() == ["a"]
    place.write("f.yaml", steps)
    assert last_line(place.plait("resume", "last").stdout).startswith("✓ finished")
    assert place.text("notes").split() == ["a", "b"]


def tool(place: Place, name: str, text: str) -> None:
    (place.root.parent / "home" / ".ai" / "tools" / "team" / f"{name}.py").write_text(text)


TWICE = (
    "hooks: ["
    + ", ".join(
        f"{{id: {one}, event: run_finished, action: {{tool: team/note, params: {{text: {one}}}}}}}"
        for one in ("one", "two")
    )
    + "]\n"
)


@pytest.mark.parametrize("inside", [False, True])
def test_a_hook_that_had_fired_when_the_run_was_killed_does_not_fire_again(
    place: Place, inside: bool
) -> None:
    if inside:
        sub = place.root.parent / "home" / ".ai" / "tools" / "team" / "sub.yaml"
        sub.write_text("version: 1.0.0\ntool_type: graph\n" + TWICE + DONE["graph"][1])
        place.write("f.yaml", "steps: [{tool: team/sub}, {tool: team/note, params: {text: b}}]\n")
    else:
        place.write("f.yaml", TWICE + DONE["graph"][1])
    place.write("die-at-two", "")
    assert place.plait("run", "f.yaml").returncode == -9
    for _ in range(2):
        assert last_line(place.plait("resume", "last").stdout).startswith("✓ finished")
    assert place.text("notes").split() == ["a", "one", "two", "two", *(["b"] if inside else [])]


def test_a_run_that_is_done_stays_done_whatever_its_limits_leave_over(place: Place) -> None:
    place.write(
        "f.yaml",
        "limits: {turns: 2}\nhooks: [{id: j, event: run_finished, action: {tool: 'directive:judge'}}]\n"
        "steps: [{prompt: one}]\n",
    )
    script(place, ("one", "An answer."), ("Judge.", "Fine."))
    for command in (["run", "f.yaml"], ["resume", "last"], ["resume", "last"]):
        assert last_line(place.plait(*command).stdout).startswith("✓ finished")


LIMITED = """\
---
limits: {turns: %d}
hooks: [{id: j, event: %s, action: {tool: "directive:judge"}}]
---
Talk.
"""


@pytest.mark.parametrize("event", ["run_finished", "step_finished"])
def test_the_limits_of_a_directive_hold_for_all_of_its_run(place: Place, event: str) -> None:
    script(place, ("Talk.", "Yes."), ("Judge.", "Fine."))
    place.write("talk.md", LIMITED % (1, event))
    for command in (["run", "talk.md"], ["resume"]):
        stopped = place.plait(*command)
        assert "the run has reached its limit of 1 turn (1 used)" in stopped.stdout
        assert last_line(stopped.stdout).endswith("1 turn, 12 tokens, $0.50")
    place.write("talk.md", LIMITED % (2, event))
    assert last_line(place.plait("resume").stdout).endswith("2 turns, 24 tokens, $1.00")


ANSWERED = [
    # event           what asks
    ("turn_finished", "f.yaml", "steps: [{id: ask, prompt: Judge., output_file: out.txt}]\n"),
    ("turn_finished", "f.md",   "Judge.\n"),
    ("after_step",    "f.yaml", "start: a\nnodes: {a: {tool: 'directive:judge'}}\n"),
    ("turn_finished", "f.yaml", "tasks: [{id: a, description: Judge.}]\n"),
]  # fmt: skip


@pytest.mark.parametrize(("event", "file", "text"), ANSWERED)
def test_a_step_that_had_its_answer_ends_although_the_limit_is_reached(
    place: Place, event: str, file: str, text: str
) -> None:
    """It is killed inside a hook about the last answer that may be asked for."""
    head = (
        "limits: {turns: 1}\n"
        f"hooks: [{{id: h, event: {event}, action: {{tool: team/note, params: {{text: heard}}}}}}]\n"
    )
    place.write(file, f"---\n{head}---\n{text}" if file.endswith(".md") else head + text)
    script(place, (None, "An answer."))
    place.write("die-at-heard", "")
    assert place.plait("run", file).returncode == -9
    done = place.plait("resume")
    assert last_line(done.stdout).startswith("✓ finished"), done.stdout
    assert last_line(done.stdout).endswith("1 turn, 12 tokens, $0.50")
    assert place.text("notes") == "heard\nheard\n"
    if "out.txt" in text:
        assert place.text("out.txt") == "An answer."
