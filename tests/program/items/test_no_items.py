"""Inputs that are written like commands, and maps that have no items."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from lang.graph.graphs import graph_place
from plait.engine.events import EventRecord, Note
from plait.views.json_view import JsonView, event_json
from plait.views.progress import Progress
from plait.views.summary import summary_lines
from plait.views.text import PlainView
from runs.stories import Place, Ran, new_place


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return new_place(tmp_path, monkeypatch)


def map_over(input: str, **fields: str) -> str:
    rest = "".join(f"  {name}: {value}\n" for name, value in fields.items())
    return f"map:\n  input: {input!r}\n{rest}  steps: [{{shell: 'echo ${{item}}'}}]\n"


def warnings(ran: Ran) -> list[str]:
    return [event.message for event in ran.events if isinstance(event, Note) and event.warning]


# ── commands ─────────────────────────────────────────────────────────────

COMMANDS = [
    "cat items.json",
    "ls *.md",
    "ls src/*.py",
    "seq 5",
    "git ls-files",
    "git ls-files '*.py'",
    "/usr/bin/find . -type f",
    "LC_ALL=C sort names",
    "jq -c .[] items.json",
    "./list.sh all",
    "tools/list.py *.csv",
    "mytool --list *.md",
    "items.txt | head",
    "ls;pwd",
    "names < all.txt",
    "$(cat names)",
    "`cat names`",
    "find ${dir} -name x",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_written_like_a_command_is_refused_with_the_form_that_runs_it(
    place: Place, command: str
) -> None:
    text = command.replace('"', '\\"')
    flow = f'vars: {{dir: .}}\nmap:\n  input: "{text}"\n  steps: [{{shell: "echo ${{item}}"}}]\n'
    message = place.refusal(flow)
    assert message.startswith(
        "flow.yaml:3:10: this looks like a command, but a plain input never runs one\n"
    )
    assert message.endswith(f'fix: write input: {{command: "{text}"}}')
    (finding,) = place.check(flow)
    assert (finding.severity, finding.code) == ("error", "command-input")
    assert str(finding.problem).replace(f"{place.root}/", "") == message


@pytest.mark.parametrize(
    ("input", "items"),
    [
        ("cat items.txt", ["in a file"]),
        ("a; b.txt", ["strange"]),
        ("my docs/*.md", ["my docs/a.md"]),
        ("ls docs/*.md", ["ls docs/b.md"]),
        ("My report - final.txt", ["final"]),
        ("R&D/*.csv", ["R&D/x.csv"]),
        ("it's.txt", ["mine"]),
    ],
)
def test_files_and_folders_that_exist_are_what_they_are(
    place: Place, input: str, items: list[str]
) -> None:
    place.write("cat items.txt", "in a file\n")
    place.write("a; b.txt", "strange\n")
    place.write("My report - final.txt", "final\n")
    place.write("it's.txt", "mine\n")
    for name in ("my docs/a.md", "ls docs/b.md", "R&D/x.csv"):
        place.write(name, "")
    flow = map_over(input)
    assert place.check(flow) == []
    assert list(place.done(flow).outputs.values()) == items


@pytest.mark.parametrize("input", ["{file: cat items.txt}", "{glob: 'ls *.txt'}"])
def test_what_says_what_it_is_is_never_taken_for_a_command(place: Place, input: str) -> None:
    place.write("cat items.txt", "x\n")
    place.write("ls me.txt", "x\n")
    flow = f"map: {{input: {input}, steps: [{{shell: 'echo ${{item}}'}}]}}\n"
    assert place.check(flow) == []
    assert place.done(flow).counted == 1


def test_what_setup_writes_is_not_refused_because_it_is_not_there_yet(place: Place) -> None:
    flow = "setup: [{shell: \"echo a > 'my items.txt'\"}]\n" + map_over("my items.txt")
    assert place.check(flow) == []
    assert place.done(flow).counted == 1


# ── no items ─────────────────────────────────────────────────────────────

ADVICE = "; write on_empty: ok if that is right, on_empty: fail if it is not"
MAPS = [
    ("[]", "the input has none that is selected"),
    ("'*.nothing'", "the pattern of the input matches no file that is selected"),
    ("{glob: '*.nothing'}", "the pattern of the input matches no file that is selected"),
    ("{command: 'true'}", "the command of the input prints none that is selected"),
    ("{file: none.txt}", "the file of the input holds none that is selected"),
    ("none.txt", "the input has none that is selected"),
]


@pytest.mark.parametrize(("input", "why"), MAPS)
def test_a_map_without_items_warns_fails_or_is_right_as_its_author_says(
    place: Place, input: str, why: str
) -> None:
    place.write("none.txt", "")
    flow = f"map: {{input: {input}, steps: [{{shell: ls}}]}}\nreduce: [{{shell: 'echo ${{map.total}}'}}]\n"
    ran = place.done(flow)
    assert warnings(ran) == [f"the map has no items: {why}{ADVICE}"]
    assert ran.outputs == {"reduce/0": "0"}
    assert warnings(place.done(flow.replace("steps", "on_empty: ok, steps"))) == []
    failed = place.run(flow.replace("steps", "on_empty: fail, steps"))
    assert (failed.result.status, failed.result.exit_code) == ("failed", 1)
    assert failed.message == f"the map has no items: {why}, and on_empty is fail"
    assert "reduce" not in failed.finished


def test_items_that_were_missing_are_sought_again_when_the_run_goes_on(place: Place) -> None:
    ran = place.run(map_over("*.csv", on_empty="fail"))
    assert ran.result.exit_code == 1
    place.write("a.csv", "")
    again = place.resume(ran.result.run)
    assert (again.result.status, again.counted) == ("done", 1)


def test_a_filter_that_chooses_nothing_is_reported_like_an_empty_input(place: Place) -> None:
    ran = place.done("map: {input: [{n: 1}], filter: n > 1, steps: [{shell: ls}]}\n")
    assert len(warnings(ran)) == 1


@pytest.mark.parametrize(
    ("items", "why"),
    [
        ("[]", "the list is empty"),
        ("'true'", "the command prints no line"),
        ("{items: []}", "the list is empty"),
        ("{command: 'true'}", "the command prints no line"),
    ],
)
def test_a_foreach_without_items_does_the_same(place: Place, items: str, why: str) -> None:
    flow = f"steps: [{{foreach: {items}, do: [{{shell: ls}}]}}]\n"
    assert warnings(place.done(flow)) == [f"foreach has no items: {why}{ADVICE}"]
    assert warnings(place.done(flow.replace("do:", "on_empty: ok, do:"))) == []
    failed = place.run(flow.replace("do:", "on_empty: fail, do:"))
    assert failed.result.exit_code == 1
    assert f"foreach has no items: {why}, and on_empty is fail" in failed.message


def test_a_foreach_of_a_graph_does_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = graph_place(tmp_path, monkeypatch)
    flow = "start: a\nnodes: {a: {type: foreach, over: [], tool: demo/echo}}\n"
    assert warnings(place.done(flow)) == [
        f"node 'a' has no items: the list of 'over' is empty{ADVICE}"
    ]
    assert warnings(place.done(flow.replace("tool:", "on_empty: ok, tool:"))) == []
    failed = place.run(flow.replace("tool:", "on_empty: fail, tool:"))
    assert failed.result.exit_code == 1
    assert (
        "node 'a' has no items: the list of 'over' is empty, and on_empty is fail" in failed.message
    )
    assert (
        "on_empty"
        in place.check(flow.replace("type: foreach, over: []", "on_empty: ok"))[0].problem.what
    )


def test_the_map_of_an_ensemble_does_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = graph_place(tmp_path, monkeypatch)
    flow = "tasks: {look: {description: look, tool: demo/echo}}\nmap: {items: [], task: look}\n"
    reported = "the map has no items: the list is empty"
    assert warnings(place.done(flow)) == [f"{reported}{ADVICE}"]
    assert warnings(place.done(flow.replace("task: look}", "task: look, on_empty: ok}"))) == []
    failed = place.run(flow.replace("task: look}", "task: look, on_empty: fail}"))
    assert failed.result.exit_code == 1
    assert failed.message == f"task 'look': {reported}, and on_empty is fail"


def test_a_word_that_on_empty_has_not_is_refused(place: Place) -> None:
    assert "warn" in place.refusal(map_over("*.md", on_empty="warm"))


def test_a_dry_run_warns_where_nothing_can_make_the_items(place: Place) -> None:
    (place.root / "flow.yaml").write_text(map_over("*.csv", on_empty="fail"))
    assert "the map has no items" in place.plait("run", "--dry-run", "flow.yaml").stdout
    place.write("flow.yaml", "setup: [{shell: touch a.csv}]\n" + map_over("*.csv", on_empty="fail"))
    done = place.plait("run", "--dry-run", "flow.yaml")
    assert (done.returncode, "not known yet: there are none so far" in done.stdout) == (0, True)


# ── what is seen of it ───────────────────────────────────────────────────


def test_a_warning_is_shown_at_once_and_again_at_the_end(place: Place) -> None:
    ran = place.done(map_over("*.csv"))
    stream, json = io.StringIO(), io.StringIO()
    progress = Progress()
    with PlainView(stream) as view, JsonView(json) as other:
        for number, event in enumerate(ran.events):
            view.watch(EventRecord(number, 0.0, event))
            other.watch(EventRecord(number, 0.0, event))
            progress.add(EventRecord(number, 0.0, event))
        view.finish(ran.result)
    warning = f"warning: {warnings(ran)[0]}"
    lines = stream.getvalue().splitlines()
    assert [line.strip() for line in lines].count(warning) == 2
    assert "1 warning" in next(line for line in lines if line.startswith("✓ finished"))
    assert '"event":"note","level":"warning","path":"map"' in json.getvalue()
    assert next(iter(summary_lines(progress, ran.result)))[1] == "yellow"
    assert f"  {warning}" in place.plait("show", "last").stdout.splitlines()
    assert event_json(Note("map", "so"))["level"] == "note"
