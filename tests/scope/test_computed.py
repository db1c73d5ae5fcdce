"""Computed values: cached for a run where that is correct, confined, and bounded."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from attack import path_attack
from plait.core.errors import InputError, LimitError, PlaitError, ProcessError
from plait.core.values import UNDEFINED, Secret
from plait.scope import CacheStats, Scope, Sources
from plait.scope.computed import CAPACITY, MAX_FILE
from plait.template.shell.binding import BoundScript
from plait.template.template import compile_template


class Environ(dict[str, str]):
    """Counts how often it is asked."""

    def __init__(self, **names: str) -> None:
        super().__init__(names)
        self.asked: list[str] = []

    def get(self, name: str, default: Any = None) -> Any:
        self.asked.append(name)
        return super().get(name, default)


# ── the cache ────────────────────────────────────────────────────────────


def test_an_answer_is_asked_for_once() -> None:
    environ = Environ(A="1")
    sources = Sources(environ=environ)
    assert [sources.environment(name) for name in ("A", "A", "B", "B")] == [
        "1",
        "1",
        UNDEFINED,
        UNDEFINED,
    ]
    assert environ.asked == ["A", "B"]
    assert sources.stats == CacheStats(hits=2, misses=2, evictions=0, entries=2)


def test_the_cache_holds_a_hundred_and_forgets_the_least_recently_used() -> None:
    environ = Environ(**{f"N{n}": "x" for n in range(200)})
    sources = Sources(environ=environ)
    for n in range(CAPACITY):
        sources.environment(f"N{n}")
    assert sources.stats == CacheStats(hits=0, misses=CAPACITY, evictions=0, entries=100)
    sources.environment("N0")  # used again: N1 is now the oldest
    sources.environment("N100")
    assert sources.stats == CacheStats(hits=1, misses=101, evictions=1, entries=100)
    environ.asked.clear()
    sources.environment("N0")
    assert environ.asked == []
    sources.environment("N1")
    assert environ.asked == ["N1"]


def test_a_small_cache_evicts_in_the_order_of_use() -> None:
    environ = Environ()
    sources = Sources(environ=environ, capacity=2)
    for name in ("A", "B", "A", "C", "A", "B"):
        sources.environment(name)
    assert environ.asked == ["A", "B", "C", "B"]
    assert sources.stats == CacheStats(hits=2, misses=4, evictions=2, entries=2)


def test_a_kind_and_its_argument_are_one_key(tmp_path: Path) -> None:
    (tmp_path / "X").write_text("file")
    sources = Sources(tmp_path, environ={"X": "env"})
    assert (sources.environment("X"), sources.file("X")) == ("env", "file")


def test_many_threads_that_ask_at_once_get_one_computation(tmp_path: Path) -> None:
    ran: list[str] = []
    inside, release = threading.Event(), threading.Event()

    def run(_: BoundScript, directory: str) -> str:
        ran.append(directory)
        inside.set()
        assert release.wait(10)
        return "out\n"

    scope = Scope(sources=Sources(tmp_path, run=run))
    template = compile_template("${cmd:date}")
    answers: list[Any] = []
    threads = [
        threading.Thread(target=lambda: answers.append(template.render(scope))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    assert inside.wait(10)
    release.set()
    for thread in threads:
        thread.join(10)
    assert answers == ["out"] * 8
    assert len(ran) == 1


def test_a_computation_that_failed_is_tried_again(tmp_path: Path) -> None:
    outcomes: Iterator[Any] = iter([ProcessError("it failed"), "second"])

    def run(_bound: BoundScript, _directory: str) -> str:
        outcome = next(outcomes)
        if isinstance(outcome, PlaitError):
            raise outcome
        return str(outcome)

    scope = Scope(sources=Sources(tmp_path, run=run))
    with pytest.raises(ProcessError, match=r"^<template>:1:1: it failed"):
        compile_template("${cmd:x}").render(scope)
    assert compile_template("${cmd:x}").render(scope) == "second"


def test_clock_and_uuid_are_asked_every_time() -> None:
    minutes, numbers = count(), count()
    sources = Sources(
        clock=lambda: datetime(2030, 1, 2, 3, next(minutes)), new_uuid=lambda: f"u{next(numbers)}"
    )
    scope = Scope(sources=sources)
    assert (
        compile_template("${date:%Y-%m-%d %H:%M} ${date:%M}").render(scope) == "2030-01-02 03:00 01"
    )
    assert compile_template("${uuid} ${uuid}").render(scope) == "u0 u1"
    assert sources.stats == CacheStats()


def test_a_uuid_is_one() -> None:
    import uuid

    first, second = (compile_template("${uuid}").render(Scope()) for _ in range(2))
    assert uuid.UUID(first) != uuid.UUID(second)


# ── files ────────────────────────────────────────────────────────────────


def read(directory: Path, path: str, **switches: Any) -> Any:
    return Sources(directory, **switches).file(path)


def test_a_file_is_its_text(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"line\r\n\xff\n")
    assert read(tmp_path, "a") == "line\r\n\udcff\n"
    assert read(tmp_path, "./a") == "line\r\n\udcff\n"
    assert read(tmp_path, str(tmp_path / "a")) == "line\r\n\udcff\n"


def test_a_file_that_is_not_there_is_undefined(tmp_path: Path) -> None:
    assert read(tmp_path, "nope") is UNDEFINED
    assert Sources().file("/etc/hostname") is UNDEFINED
    scope = Scope(sources=Sources(tmp_path))
    assert compile_template("${file:nope:-none} ${file:nope}").render(scope) == "none ${file:nope}"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "outside").write_text("secret")
    project = tmp_path / "project"
    (project / "sub").mkdir(parents=True)
    (project / "inside").write_text("ok")
    (project / "link").symlink_to(tmp_path / "outside")
    (project / "way").symlink_to(tmp_path)
    (project / "absolute").symlink_to(project / "inside")
    (project / "sub" / "back").symlink_to("../inside")
    (project / "round").symlink_to("sub/../round")
    (tmp_path / "project-two").mkdir()
    (tmp_path / "project-two" / "x").write_text("secret")
    return project


@pytest.mark.parametrize(
    "path",
    [
        "../outside", "link", "way/outside", "sub/../../outside", "/etc/passwd", "../project-two/x", "..",
        "sub/../..", "../nope", "../project/inside", "way/project/inside", "absolute",
    ],
)  # fmt: skip
def test_a_file_outside_the_project_is_refused(project: Path, path: str) -> None:
    with pytest.raises(InputError) as caught:
        read(project, path)
    assert str(caught.value) == (
        "this file is outside the project\nfix: name a file below the project, or allow files outside in the flow"
    )


@pytest.mark.parametrize("path", ["inside", "./inside", "sub/../inside", "sub/back", "sub//back"])
def test_a_file_is_read_on_every_way_that_stays_inside(project: Path, path: str) -> None:
    assert read(project, path) == "ok"
    assert read(project, str(project / path)) == "ok"


def test_a_project_may_be_reached_by_a_link(project: Path) -> None:
    (project.parent / "known-as").symlink_to(project)
    for path in ("inside", str(project / "inside"), str(project.parent / "known-as" / "inside")):
        assert read(project.parent / "known-as", path) == "ok"


def test_links_that_lead_in_a_circle_are_no_file(project: Path) -> None:
    with pytest.raises(InputError, match=r"^this file cannot be read: Too many levels"):
        read(project, "round")


@pytest.mark.parametrize("what", ["folder", "file"])
def test_a_race_with_links_brings_nothing_from_outside_into_a_template(
    tmp_path: Path, what: str
) -> None:
    counts = path_attack.attack(tmp_path, what, "template", 200)
    assert counts["outside"] == 0
    assert counts["inside"] + counts["nothing"] + counts["refused"] == 200


def test_a_flow_may_allow_more(project: Path) -> None:
    assert read(project, "../outside", allow_outside=True) == "secret"


def test_a_nul_in_a_name_is_refused(tmp_path: Path) -> None:
    for allow in (False, True):
        with pytest.raises(InputError, match=r"^the name of a file cannot hold NUL"):
            read(tmp_path, "a\0b", allow_outside=allow)


def test_what_is_no_regular_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(InputError, match=r"^this file cannot be read: "):
            read(tmp_path, name)


def test_a_file_has_a_greatest_size(tmp_path: Path) -> None:
    (tmp_path / "most").write_bytes(b"x" * MAX_FILE)
    (tmp_path / "more").write_bytes(b"x" * (MAX_FILE + 1))
    assert len(read(tmp_path, "most")) == MAX_FILE
    with pytest.raises(LimitError, match=r"^this file is larger than 4,194,304 bytes"):
        read(tmp_path, "more")


def test_an_error_about_a_file_shows_the_template_and_not_the_value(project: Path) -> None:
    scope = Scope({"name": "../private-name"}, sources=Sources(project))
    with pytest.raises(InputError) as caught:
        compile_template("<${file:${name}}>").render(scope)
    assert str(caught.value) == (
        "<template>:1:2: this file is outside the project\n1 | <${file:${name}}>\n  |  ^^^^^^^^^^^^^^^\n"
        "fix: name a file below the project, or allow files outside in the flow"
    )


def test_what_a_file_holds_is_not_read_as_a_template(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("${b} {b} $b")
    assert (
        compile_template("<${file:a}>").render(Scope({"b": 1}, sources=Sources(tmp_path)))
        == "<${b} {b} $b>"
    )


def test_a_file_whose_name_is_unknown_is_not_looked_for(tmp_path: Path) -> None:
    sources = Sources(tmp_path)
    assert compile_template("${file:${nope}}").render(Scope(sources=sources)) == "${file:${nope}}"
    assert sources.stats.misses == 0


# ── commands and dates ───────────────────────────────────────────────────


def test_a_command_gets_its_values_bound_and_loses_trailing_newlines(tmp_path: Path) -> None:
    seen: list[BoundScript] = []

    def run(bound: BoundScript, directory: str) -> str:
        seen.append(bound)
        assert directory == str(tmp_path)
        return " out \n\n"

    scope = Scope({"x": "$(touch /tmp/no); '"}, sources=Sources(tmp_path, run=run))
    assert compile_template("[${cmd:echo ${x}}]").render(scope) == "[ out ]"
    [bound] = seen
    assert "touch" not in bound.script
    assert "$(touch /tmp/no); '" in bound.env.values()


def test_commands_with_other_values_are_other_commands(tmp_path: Path) -> None:
    sources = Sources(tmp_path, run=lambda bound, _: ",".join(sorted(bound.env.values())))
    template = compile_template("${cmd:echo ${x}}")
    assert [template.render(Scope({"x": x}, sources=sources)) for x in ("a", "b", "a")] == [
        "a",
        "b",
        "a",
    ]
    assert (sources.stats.misses, sources.stats.hits) == (2, 1)


def test_without_a_way_to_run_a_command_it_is_undefined(tmp_path: Path) -> None:
    assert compile_template("${cmd:ls:-none}").render(Scope(sources=Sources(tmp_path))) == "none"


def test_the_environment_may_hold_a_secret() -> None:
    sources = Sources(environ={"T": "token"})
    assert (
        compile_template("${env.T} ${env.NOPE:-none}").render(Scope(sources=sources))
        == "token none"
    )
    assert compile_template("${t}").render(Scope({"t": Secret("x")})) == Secret("x")


def test_a_missing_file_is_not_cached(tmp_path: Path) -> None:
    sources = Sources(tmp_path)
    assert sources.file("x") is UNDEFINED
    (tmp_path / "x").write_text("there")
    assert sources.file("x") == "there"
    (tmp_path / "x").write_text("another")
    assert sources.file("x") == "there"
