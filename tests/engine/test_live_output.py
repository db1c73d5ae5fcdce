"""What running steps print reaches watchers and a file, masked, while they run."""

from __future__ import annotations

from pathlib import Path

from plait.engine.context import Secrets
from plait.engine.events import EventRecord, ModelText, StepFinished
from plait.engine.live_output import FILE, MOST_WAITING, LiveOutput, OutputFile, read_lines
from plait.engine.outcome import Succeeded


def texts(live: LiveOutput) -> list[str]:
    return [one.text for one in live.take()[0]]


def end(path: str) -> EventRecord:
    return EventRecord(1, 0.0, StepFinished(path, "shell", path, "", Succeeded(None), 0.1))


def test_output_is_taken_at_the_second_look_and_is_in_the_file(tmp_path: Path) -> None:
    live = LiveOutput(Secrets(), str(tmp_path))
    step = live.open("setup/0", 1)
    step.write("stdout", b"one\n")
    assert live.take() == ([], True)
    assert texts(live) == ["one\n"]
    step.write("stdout", b"two\n")
    assert texts(live) == []
    assert texts(live) == ["two\n"]
    lines = [(line["at"], line["text"]) for line in read_lines(str(tmp_path / FILE))]
    assert lines == [(0, "one\n"), (4, "two\n")]


def test_a_step_that_ends_before_the_second_look_leaves_nothing(tmp_path: Path) -> None:
    live = LiveOutput(Secrets(), str(tmp_path))
    step = live.open("setup/0", 1)
    step.write("stdout", b"short\n")
    live.take()
    step.close()
    assert live.take() == ([], False)
    assert not (tmp_path / FILE).exists()


def test_a_secret_in_two_pieces_reaches_neither_watchers_nor_the_file(tmp_path: Path) -> None:
    live = LiveOutput(Secrets(["hunter2secret"]), str(tmp_path))
    step, shown = live.open("setup/0", 1), []
    for piece in (b"key=hunter2", b"secret\n", b"next\n"):
        step.write("stdout", piece)
        shown += texts(live) + texts(live)
    assert "".join(shown) == "key=***\nnext\n"
    assert b"hunter2" not in (tmp_path / FILE).read_bytes()


def test_a_character_in_two_pieces_stays_whole(tmp_path: Path) -> None:
    live = LiveOutput(Secrets(), str(tmp_path))
    step, shown = live.open("setup/0", 1), []
    for piece in ("日".encode()[:1], "日".encode()[1:]):
        step.write("stdout", piece)
        shown += texts(live) + texts(live)
    assert shown == ["日"]


def test_the_file_loses_a_step_when_its_end_is_recorded(tmp_path: Path) -> None:
    live = LiveOutput(Secrets(), str(tmp_path))
    live.open("setup/0", 1).write("stdout", b"one\n")
    live.take()
    live.take()
    live.add_reported([end("setup/0")])
    assert list(read_lines(str(tmp_path / FILE))) == []
    live.close()
    assert not (tmp_path / FILE).exists()


def test_the_file_keeps_a_step_that_was_cut_short(tmp_path: Path) -> None:
    live = LiveOutput(Secrets(), str(tmp_path))
    live.open("setup/0", 1).write("stdout", b"one\n")
    live.take()
    live.take()
    live.close()
    with (tmp_path / FILE).open("ab") as file:
        file.write(b'{"path": "setu')  # a kill in the middle of a line
    assert [line["text"] for line in read_lines(str(tmp_path / FILE))] == ["one\n"]


def test_a_step_that_prints_too_fast_is_shown_only_at_its_end(tmp_path: Path) -> None:
    live = LiveOutput(Secrets(), str(tmp_path))
    step = live.open("setup/0", 1)
    step.write("stdout", b"x" * (MOST_WAITING + 1))
    step.write("stdout", b"more\n")
    assert live.take() == ([], False)


def says(path: str, text: str) -> EventRecord:
    return EventRecord(1, 0.0, ModelText(path, text))


def test_the_words_of_a_model_are_in_the_file_until_its_turn_has_ended(tmp_path: Path) -> None:
    live = LiveOutput(Secrets(), str(tmp_path))
    live.add_reported([says("agent/turn:1", "Rain "), says("agent/turn:1", "falls")])
    live.add_reported([says("agent/turn:1", " on")])
    pieces = [
        (one.path, one.stream, one.text, at) for one, at in OutputFile(str(tmp_path)).new_pieces()
    ]
    assert pieces == [
        ("agent/turn:1", "model", "Rain ", 0),
        ("agent/turn:1", "model", "falls", 5),
        ("agent/turn:1", "model", " on", 10),
    ]
    live.add_reported([end("agent/turn:1")])
    assert list(read_lines(str(tmp_path / FILE))) == []


def test_the_words_of_a_turn_that_has_ended_already_are_not_written(tmp_path: Path) -> None:
    live = LiveOutput(Secrets(), str(tmp_path))
    live.add_reported([says("agent/turn:1", "short"), end("agent/turn:1")])
    live.close()
    assert not (tmp_path / FILE).exists()
