"""One word per concept: names in the code do not use words that were given up.

docs/architecture.md and CHANGELOG.md use the words of Temporal, Prefect, Snakemake and LangGraph.  A
word that this table bans as a part of a name had another meaning here before, or several.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PLAIT = Path(__file__).parent.parent / "src" / "plait"

INSTEAD = {
    # banned            use
    "hands": "services, ports or adapters",
    "life": "run attempt",
    "lifetime": "run attempt",
    "errand": "item, or action",
    "parcel": "job, or item task",
    "told": "reported, or the name of the value",
    "tell": "report, notify or describe",
    "said": "fields, text or the name of the value",
    "rehearsal": "dry run",
    "rehearse": "dry run",
    "rehearsed": "planned",
    "hole": "placeholder",
    "fan": "map",
    "mending": "failure handler",
    "remedy": "failure handler",
    "reckoning": "usage",
    "tally": "usage, or sum",
    "essence": "key",
    "verdict": "decision",
    "meeting": "gather worktree",
    "crew": "workers",
    "news": "event",
    "surroundings": "scope",
    "converse": "session",
    "conversation": "session",
    "remembered": "replayed",
    "nobody": "the thing that is missing",
}


def names_in(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Each name that the code gives or uses, with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                yield node.lineno, name
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
            ):
                yield node.lineno, name
            case ast.arg(arg=name):
                yield node.lineno, name


def words_of(name: str) -> list[str]:
    return re.findall(r"[a-z]+", re.sub(r"([A-Z])", r"_\1", name).lower())


def banned_in(text: str) -> list[str]:
    return [
        f"{line}: {name}: say {INSTEAD[word]}"
        for line, name in names_in(ast.parse(text))
        for word in words_of(name)
        if word in INSTEAD
    ]


def test_names_use_the_words_of_today() -> None:
    found = [
        f"{file.relative_to(PLAIT)}:{one}"
        for file in sorted(PLAIT.rglob("*.py"))
        for one in banned_in(file.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("def told(): pass", ["1: told: say reported, or the name of the value"]),
        ("class WorkingHands: pass", ["1: WorkingHands: say services, ports or adapters"]),
        ("x = run.next_life", ["1: next_life: say run attempt"]),
        ("handsome = 1", []),
        ("lifecycle = 1", []),
    ],
)
def test_a_banned_word_is_found_in_names_and_not_in_longer_words(
    code: str, found: list[str]
) -> None:
    assert banned_in(code) == found


def test_the_languages_define_no_step() -> None:
    steps = [
        f"{file.relative_to(PLAIT)}: {node.name}"
        for file in sorted((PLAIT / "lang").rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
        and {"fingerprint", "run"}
        <= {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
    ]
    assert steps == []
