"""One word per concept: names, docstrings and comments do not use words that were given up.

docs/architecture.md and CHANGELOG.md use the words of Temporal, Prefect, Snakemake and LangGraph.  A
word that INSTEAD bans as a part of a name had another meaning here before, or several.  Names are
checked in src/plait, tests and bench.  Docstrings and comments are checked as well, but only for the
words in DEAD, which have no innocent meaning.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PLAIT = ROOT / "src" / "plait"
TREES = [PLAIT, ROOT / "tests", ROOT / "bench"]

# Also as a plural.
INSTEAD = {
    # banned            use
    "hands": "services, ports or adapters",
    "life": "run attempt",
    "lifetime": "run attempt",
    "lived": "performed or ran",
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


DEAD = re.compile(
    r"\b(life|lifetime|errands?|parcels?|rehears\w+|reckon\w*|tally|tallies|verdicts?|essence"
    r"|mending|crew|fans?(?!-)|fanned|holes?|surroundings)\b",
    re.IGNORECASE,
)
"""Words without an innocent meaning: they may not be in a docstring or comment either."""


def files_of(tree: Path) -> list[Path]:
    return sorted(tree.rglob("*.py"))


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
            case ast.alias(asname=str(name)) | ast.ExceptHandler(name=str(name)):
                yield node.lineno, name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield node.lineno, name


def words_of(name: str) -> list[str]:
    return re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])([A-Z])", r"_\1", name).lower())


@cache
def advice(name: str) -> list[str]:
    """What to say instead of each banned word in a name."""
    words = words_of(name)
    singular = [word if word in INSTEAD else word.removesuffix("s") for word in words]
    return [f"{name}: say {INSTEAD[word]}" for word in singular if word in INSTEAD]


def banned_in(text: str) -> list[str]:
    # Most files have no such word at all, and parsing them takes much longer.
    if not any(map(advice, set(re.findall(r"\w+", text)))):
        return []
    return [f"{line}: {one}" for line, name in names_in(ast.parse(text)) for one in advice(name)]


def prose_in(text: str) -> Iterator[tuple[int, str]]:
    """Each line of a comment or docstring, with its number; a docstring may also follow a name."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(docstring))):
                yield from enumerate(docstring.splitlines(), node.lineno)


def dead_in(text: str) -> list[str]:
    if not DEAD.search(text):
        return []
    return [f"{line}: {word}" for line, prose in prose_in(text) for word in DEAD.findall(prose)]


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: tree.name)
def test_names_use_the_words_of_today(tree: Path) -> None:
    found = [
        f"{file.relative_to(ROOT)}:{one}"
        for file in files_of(tree)
        for one in banned_in(file.read_text(encoding="utf-8"))
    ]
    files = [
        f"{path.relative_to(ROOT)}: {one}" for path in files_of(tree) for one in advice(path.stem)
    ]
    assert found + files == []


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: tree.name)
def test_docstrings_and_comments_use_no_dead_word(tree: Path) -> None:
    found = [
        f"{file.relative_to(ROOT)}:{one}"
        for file in files_of(tree)
        for one in dead_in(file.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("def told(): pass", ["1: told: say reported, or the name of the value"]),
        ("class WorkingHands: pass", ["1: WorkingHands: say services, ports or adapters"]),
        ("x = run.next_life", ["1: next_life: say run attempt"]),
        ("def verdicts(): pass", ["1: verdicts: say decision"]),
        ("SAID = 1", ["1: SAID: say fields, text or the name of the value"]),
        ("handsome = 1", []),
        ("lifecycle = 1", []),
    ],
)
def test_a_banned_word_is_found_in_names_and_not_in_longer_words(
    code: str, found: list[str]
) -> None:
    assert banned_in(code) == found


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ('"""One life of a run."""', ["1: life"]),
        ('x = 1\n"""The number\nof holes."""', ["3: holes"]),
        ("x = 1  # the Reckoning", ["1: Reckoning"]),
        ("x = 'the life of a run'", []),
        ("x = 1  # its lifecycle", []),
    ],
)
def test_a_dead_word_is_found_in_docstrings_and_comments_and_not_in_data(
    code: str, found: list[str]
) -> None:
    assert dead_in(code) == found


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
