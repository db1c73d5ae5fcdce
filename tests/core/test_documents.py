"""Documents: what a text means, where each part of it stands, and what is refused."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz import yaml_fuzz
from ordinary import by_ordinary_user
from plait.core import documents
from plait.core.documents import (
    Mapping,
    Node,
    Scalar,
    Sequence,
    check_keys,
    load,
    load_json,
    merge,
    origins,
    parse,
    parse_json,
)
from plait.core.documents.files import read_text
from plait.core.errors import DocumentError, InputError, InternalError, LimitError, PlaitError
from plait.core.source import Span
from share import examples


def data(text: str, *, pure: bool = False) -> object:
    return parse(text, "f.yaml", pure=pure).data()


def refusal(text: str, *, pure: bool = False) -> str:
    with pytest.raises((DocumentError, LimitError)) as caught:
        parse(text, "f.yaml", pure=pure)
    return str(caught.value)


def mapping(text: str, name: str = "f.yaml") -> Mapping:
    node = parse(text, name)
    assert isinstance(node, Mapping)
    return node


def scalar(node: Node | None) -> Scalar:
    assert isinstance(node, Scalar)
    return node


def written(span: Span) -> str:
    return span.source.text[span.start : span.end]


# ── What a text means ────────────────────────────────────────────────────────────────────────────

SCALARS = [
    # text             value
    ("1",              1),
    ("-7",             -7),
    ("+7",             7),
    ("014",            14),           # not octal: that is YAML 1.1
    ("0o14",           12),
    ("0x1F",           31),
    ("1.5",            1.5),
    ("1.",             1.0),
    (".5",             0.5),
    ("-1e3",           -1000.0),
    ("true",           True),
    ("FALSE",          False),
    ("null",           None),
    ("~",              None),
    ("",               None),
    ("yes",            "yes"),
    ("no",             "no"),
    ("on",             "on"),
    ("Off",            "Off"),
    ("y",              "y"),
    ("tRUE",           "tRUE"),
    ("1_000",          "1_000"),
    ("12:30:45",       "12:30:45"),
    ("2020-01-01",     "2020-01-01"),
    ("0b11",           "0b11"),
    ("-0x1F",          "-0x1F"),
    ("1.2.3",          "1.2.3"),
    ("١",              "١"),          # a digit for Python, not for YAML
    ("-",              [None]),
    ("+",              "+"),
    (".",              "."),
    ("=",              "="),
    ("<<",             "<<"),
    ("'1'",            "1"),
    ('"true"',         "true"),
    ('""',             ""),
    ("!!str 12",       "12"),
    ("! 12",           "12"),
    ("!!int '12'",     12),
    ("!!int 0x10",     16),
    ("!!float 1",      1.0),
    ("!!float 0x10",   16.0),
    ("!!bool true",    True),
    ("!!null ''",      None),
    ("!!str",          ""),
    ("!<tag:yaml.org,2002:str> 1", "1"),
    ("!!seq [1]",      [1]),
    ("!!map {a: 1}",   {"a": 1}),
    ("[a, 'b', {c: d}, e: f]", ["a", "b", {"c": "d"}, {"e": "f"}]),
]  # fmt: skip


@pytest.mark.parametrize("pure", [False, True])
@pytest.mark.parametrize(("text", "value"), SCALARS)
def test_a_scalar_means_what_the_core_schema_of_yaml_1_2_says(
    text: str, value: object, pure: bool
) -> None:
    found = data(text, pure=pure)
    assert (type(found), found) == (type(value), value)


KEYS = [
    ("on: 1",           {"on": 1}),
    ("404: 1",          {"404": 1}),
    ("1.50: 1",         {"1.50": 1}),
    ("0x1F: 1",         {"0x1F": 1}),
    ("true: 1",         {"true": 1}),
    ("~: 1",            {"~": 1}),
    ('"": 1',           {"": 1}),
    (".inf: 1",         {".inf": 1}),
    ("? a\n: 1",        {"a": 1}),
    ("!!str a: 1",      {"a": 1}),
    ("{a, b: 1}",       {"a": None, "b": 1}),
    ('{"a":1}',         {"a": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "value"), KEYS)
def test_a_key_is_its_text_as_written(text: str, value: object) -> None:
    assert data(text) == value


ONE_DOCUMENT = [
    ("", None),
    ("# nothing\n", None),
    ("---\n", None),
    ("--- a\n...\n", "a"),
    ("%YAML 1.2\n---\na: 1\n", {"a": 1}),
    ("# first\n%YAML 1.1\n--- 1\n", 1),
    ("a: 1\n...\n# the end\n", {"a": 1}),
]


@pytest.mark.parametrize("pure", [False, True])
@pytest.mark.parametrize(("text", "value"), ONE_DOCUMENT)
def test_a_file_holds_one_document_and_an_empty_one_is_null(
    text: str, value: object, pure: bool
) -> None:
    assert data(text, pure=pure) == value


MERGE_KEYS = [
    "a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\n",
    "a: &a {x: 1, y: 2}\nb: {y: 3, <<: *a}\n",
    "a: &a {x: 1}\nb: &b {x: 2, z: 3}\nc: {<<: [*a, *b]}\n",
    "a: &a {x: 1}\nb: &b {<<: *a, y: 2}\nc: {<<: *b, z: 3}\n",
    "a: {<<: {x: 1}, y: 2}\n",
    "a: {<<: []}\n",
    "a: {'<<': 1}\n",  # in quotes it is a key like any other
]


@pytest.mark.parametrize("text", MERGE_KEYS)
def test_merge_keys_give_what_the_usual_loader_gives_in_the_same_order(text: str) -> None:
    assert json.dumps(data(text)) == json.dumps(yaml.safe_load(text))


def test_an_alias_shares_its_node() -> None:
    root = mapping("a: &x [1, 2]\nb: *x\n")
    assert root.get("b") is root.get("a")


def test_an_anchor_may_be_given_again_and_the_last_one_above_counts() -> None:
    assert data("[&a 1, *a, &a 2, *a]") == [1, 1, 2, 2]


plain_data = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(
        st.characters(
            exclude_categories=("Cs", "Cc", "Cn", "Co"), exclude_characters="\u2028\u2029\ufeff"
        )
    ),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text("ab .:#-'\"[{<é😀", max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(value=plain_data)
def test_json_means_the_same_read_as_json_or_as_yaml(value: object) -> None:
    text = json.dumps(value, ensure_ascii=False)
    assert parse_json(text, "f.json") == value
    assert json.dumps(data(text), ensure_ascii=False) == text


@settings(deadline=None)
@given(value=plain_data)
def test_json_with_every_character_escaped_is_read_back(value: object) -> None:
    assert parse_json(json.dumps(value), "f.json") == value


# ── Both parsers ─────────────────────────────────────────────────────────────────────────────────


def shape(node: Node) -> object:
    """A node with all its places, comparable across sources."""
    place = (node.span.start, node.span.end)
    match node:
        case Scalar(value, _, style):
            return place, style, value
        case Sequence(items):
            return place, [shape(item) for item in items]
        case Mapping(entries):
            return place, [(shape(key), shape(value)) for key, value in entries]


SAME = [
    *yaml_fuzz.DOCUMENTS,
    *MERGE_KEYS,
    *(text for text, _ in SCALARS + KEYS + ONE_DOCUMENT),
    "a:\n- b\n- c:\n    d\n# comment\n\ne: &x !!map\n  f: g\nh: *x\n",
    "a: &x\n  - &y 'b'\n  - !!str # why\n    c\nd:\n",
]


@pytest.mark.parametrize("text", SAME)
def test_both_parsers_give_the_same_nodes_at_the_same_places(text: str) -> None:
    assert shape(parse(text, "f.yaml")) == shape(parse(text, "f.yaml", pure=True))


@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_any_text_gives_a_node_or_our_error(seed: int) -> None:
    assert sum(yaml_fuzz.run(3, seed).values()) == 9


@settings(deadline=None)
@given(text=st.text("ab:-?[]{},'\"|>&*!%#@\\ \n\t\r01.<~"))
def test_random_text_gives_a_node_or_our_error(text: str) -> None:
    for pure in (False, True):
        assert yaml_fuzz.outcome(text, pure=pure).startswith("yaml ")
    assert yaml_fuzz.json_outcome(text).startswith("json ")


def test_importing_documents_does_not_import_yaml() -> None:
    code = "import plait.core.documents, sys; sys.exit('yaml' in sys.modules)"
    paths = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": paths}, timeout=60
    )
    assert done.returncode == 0


# ── Where things stand ───────────────────────────────────────────────────────────────────────────

SPANS = [
    # text                             path     written there           line, column
    ("a: b c\n",                       "a",     "b c",                  (1, 4)),
    ("a:  'b'  # c\n",                 "a",     "'b'",                  (1, 5)),
    ("a: &x b\n",                      "a",     "b",                    (1, 7)),
    ("a: &x !!str 12\n",               "a",     "12",                   (1, 13)),
    ("a: !!str # c\n  12\n",           "a",     "12",                   (2, 3)),
    ("a:\nb: 1\n",                     "a",     "",                     (1, 3)),
    ("a: &x\nb: 1\n",                  "a",     "",                     (1, 6)),
    ("a: [1, 2] # c\n",                "a",     "[1, 2]",               (1, 4)),
    ("a: {b: 1}\n",                    "a.b",   "1",                    (1, 8)),
    ("a:\n  b: 1\n  c: d\n\n# e\nf: 2", "a",    "b: 1\n  c: d",         (2, 3)),
    ("a:\n- 1\n- 2\n\nf: 2",           "a",     "- 1\n- 2",             (2, 1)),
    ("b: &x 1\na:\n  - *x\n",          "a",     "- *x",                 (3, 3)),
    ("\ufeffa: b\n",                   "a",     "b",                    (1, 4)),
    ("\ufeffa: 1\r\nb: 'x\ty'\r\n",   "b",     "'x\ty'",               (2, 4)),
    ("a: 1\r\n\r\nb: |\r\n  x\r\nc: d\r\n", "c", "d",                   (5, 4)),
    ("😀é: 'é😀'\n",                    "😀é",   "'é😀'",                (1, 5)),
]  # fmt: skip


@pytest.mark.parametrize("pure", [False, True])
@pytest.mark.parametrize(("text", "path", "there", "position"), SPANS)
def test_a_node_knows_its_place(
    text: str, path: str, there: str, position: tuple[int, int], pure: bool
) -> None:
    node = parse(text, "f.yaml", pure=pure).at(path)
    assert node is not None
    assert (written(node.span), node.span.position) == (there, position)


def test_a_tab_between_key_and_value_shifts_nothing() -> None:
    node = scalar(parse("a:\t'b'\t# c\n", "f.yaml").at("a"))
    assert (written(node.span), node.span.position) == ("'b'", (1, 4))


def test_a_map_knows_the_place_of_a_key_and_its_own_for_a_key_it_lacks() -> None:
    root = mapping("a: 1\nbc: 2\n")
    assert written(root.key_span("bc")) == "bc"
    assert root.key_span("d") == root.span


EXCERPTS = [
    # text                                        value              where "X" stands in the file
    ("a: b X\n",                                  "b X",             (1, 6)),
    ("a: b\n  c\n\n  X\n",                        "b c\nX",          (4, 3)),
    ("a: 'it''s X'\n",                            "it's X",          (1, 11)),
    ('a: "\\t\\x41\\u0042 \\U0001F600X"\n',       "\tAB 😀X",        (1, 28)),
    ('a: "b \\\n   cX"\n',                        "b cX",            (2, 5)),
    ('a: "b\\\n\n  X"\n',                         "b\nX",            (3, 3)),
    ('a: "b  \n\n\n  X"\n',                       "b\n\nX",          (4, 3)),
    ("a: |\n   b\n    X\n",                       "b\n X\n",         (3, 5)),
    ("a: |-2\n    b\n  X\n",                      "  b\nX",          (3, 3)),
    ("a: |+\n\n\n  X\n\n\n",                      "\n\nX\n\n\n",     (4, 3)),
    ("a: >\n  b\n  c\n\n  X\n",                   "b c\nX\n",        (5, 3)),
    ("a: >\n  b\n    c\n  X\n",                   "b\n  c\nX\n",     (4, 3)),
    ("a: >1\n   \n  b\n X",                       "  \n b\nX",       (4, 2)),
    ("a: |  # why\r\n  b\r\n\r\n  X\r\n",         "b\n\nX\n",        (4, 3)),
    ("\ufeffa: >-\r\n  b\r\n  X\r\n",             "b X",             (3, 3)),
    ("a: &n !!str |\n\tX\n".replace("\t", "  "),  "X\n",             (2, 3)),
]  # fmt: skip


@pytest.mark.parametrize("pure", [False, True])
@pytest.mark.parametrize(("text", "value", "position"), EXCERPTS)
def test_a_character_of_a_string_is_found_in_the_file(
    text: str, value: str, position: tuple[int, int], pure: bool
) -> None:
    node = scalar(parse(text, "f.yaml", pure=pure).at("a"))
    assert node.value == value
    at = value.index("X")
    assert Span(node.source(), at, at + 1).position == position
    assert list(yaml_fuzz.misplaced_characters(node)) == []


def test_an_error_in_a_string_is_drawn_in_its_file() -> None:
    node = scalar(
        parse("steps:\n  - shell: >\n      echo ${a}\n      ${itme}\n", "flow.yaml").at(
            "steps.0.shell"
        )
    )
    at = str(node.value).index("${itme}")
    span = Span(node.source(), at, at + len("${itme}"))
    assert f"{span}\n{span.draw()}" == "flow.yaml:4:7\n4 |       ${itme}\n  |       ^^^^^^^"


dumped_text = st.text(
    st.characters(codec="utf-8", exclude_characters="\x00\x85\u2028\u2029\ufeff")
    | st.sampled_from("ab '\"\\\n\t: #-{}[]"),
    max_size=60,
)


@settings(deadline=None)
@given(
    value=dumped_text,
    style=st.sampled_from(["", "'", '"', "|", ">"]),
    width=st.integers(3, 40),
    indent=st.integers(2, 6),
    pure=st.booleans(),
    crlf=st.booleans(),
)
def test_a_string_dumped_in_any_style_is_found_character_by_character(
    value: str, style: str, width: int, indent: int, pure: bool, crlf: bool
) -> None:
    text = yaml.dump(
        {"k": [value]}, default_style=style or None, width=width, indent=indent, allow_unicode=True
    )
    text = text.replace("\n", "\r\n") if crlf else text
    node = parse(text, "f.yaml", pure=pure)
    found = scalar(node.at("k.0")).value
    if isinstance(found, str):  # the dumper leaves 0o7 plain, which was a string in YAML 1.1
        assert found == value
    assert list(yaml_fuzz.misplaced_characters(node)) == []


LETTERS = [chr(code) for code in range(0x4E00, 0x4E00 + 200)]
PARTS = {
    "": ["x", "x", " ", "  ", "\n  ", "\n\n   ", " \n  ", "\t"],
    "'": ["x", "x", " ", "''", "\n  ", "\n\n\n ", " \t\n  ", '"', "\\"],
    '"': [
        "x",
        "x",
        " ",
        "\\n",
        "\\x41",
        "\\U0001F600",
        "\\ ",
        "\n  ",
        " \n\n  ",
        "\\\n   ",
        " \\\n\n  ",
        "'",
    ],
    "|": ["x", "x", " ", "\n  ", "\n\n  ", "\n   ", "\n     ", "\n \n  ", "\t", "'"],
}
PARTS[">"] = PARTS["|"]


@st.composite
def handwritten(draw: st.DrawFn) -> tuple[str, str]:
    """A document with one string, in which every letter stands once; and the string's style."""
    style = draw(st.sampled_from(list(PARTS)))
    parts = draw(st.lists(st.sampled_from(PARTS[style]), max_size=30))
    letters = iter(LETTERS)
    body = "".join(next(letters) if part == "x" else part for part in parts)
    if style in ("|", ">"):
        header = draw(st.sampled_from(["", "-", "+", "2", "2-", "+1", "1"]))
        text = (
            f"k:\n - a: {style}{header}\n   {body}"
            if draw(st.booleans())
            else f"a: {style}{header}\n  {body}\n"
        )
    else:
        text = f"a: {style}{body}{style}\n"
    return (text.replace("\n", "\r\n") if draw(st.booleans()) else text), style


@settings(max_examples=examples(300), deadline=None)
@given(document=handwritten(), pure=st.booleans())
def test_every_letter_is_found_where_the_author_wrote_it(
    document: tuple[str, str], pure: bool
) -> None:
    text, _ = document
    try:
        node = parse(text, "f.yaml", pure=pure)
    except DocumentError:
        return
    assert list(yaml_fuzz.misplaced_characters(node)) == []
    for each in yaml_fuzz.strings(node):
        source = each.source()
        for offset, letter in enumerate(source.text):
            if letter in LETTERS:
                assert source.outer_span(offset, offset + 1).start == text.index(letter)


def test_the_handwritten_strings_are_mostly_readable() -> None:
    """Otherwise the property above would hold of nothing."""
    seen = dict.fromkeys(PARTS, 0)

    @settings(max_examples=500, deadline=None, database=None, derandomize=True)
    @given(document=handwritten())
    def count(document: tuple[str, str]) -> None:
        with contextlib.suppress(DocumentError):
            seen[document[1]] += any(
                letter in str(parse(document[0], "f").data()) for letter in LETTERS
            )

    count()
    assert min(seen.values()) >= 5, seen


def test_only_a_string_has_a_source() -> None:
    with pytest.raises(InternalError):
        scalar(parse("12", "f.yaml")).source()


# ── What is refused ──────────────────────────────────────────────────────────────────────────────

LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)
)
MERGE_BOMB = "a0: &a0 {x: 1}\n" + "".join(
    f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}\n" for i in range(1, 10)
)
LONG_TEXT = "a: &a " + "x" * 10_000 + "\nb: [" + "*a, " * 500 + "]\n"
ALIAS_LADDER = "a0: &a0 [1]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 70))
NODES = "more than 200,000 nodes when its aliases are written out"
DEEP = "nested deeper than 64 levels"

BOMBS = [
    ("billion laughs", LAUGHS, NODES),
    ("merge bomb", MERGE_BOMB, NODES),
    (
        "long text repeated",
        LONG_TEXT,
        "more than 4,194,304 characters when its aliases are written out",
    ),
    ("aliases as a ladder", ALIAS_LADDER, DEEP),
    ("30,000 [", "[" * 30_000, DEEP),
    ("30,000 {a: ", "{a: " * 30_000, DEEP),
    ("30,000 '- '", "- " * 30_000, DEEP),
    ("30,000 '? '", "? " * 30_000, DEEP),
    ("many nodes", "- 1\n" * 200_000, NODES),
    ("many keys", "".join(f"k{i}:\n" for i in range(100_001)), NODES),
    ("large text", "#" * (documents.MAX_TEXT + 1), "larger than 4,194,304 characters"),
]


@pytest.mark.parametrize(
    ("text", "reason"), [row[1:] for row in BOMBS], ids=[row[0] for row in BOMBS]
)
def test_a_bomb_is_refused_at_its_limit(text: str, reason: str) -> None:
    with pytest.raises(LimitError) as caught:
        parse(text, "f.yaml")
    assert reason in caught.value.what
    assert caught.value.fix
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("text", [LAUGHS, MERGE_BOMB, ALIAS_LADDER, "[" * 100])
def test_the_parser_in_python_stops_at_the_same_limits(text: str) -> None:
    assert refusal(text, pure=True) == refusal(text)


def test_what_stands_just_within_the_limits_is_read() -> None:
    assert data("[" * 64 + "]" * 64) is not None
    assert len(mapping("a: &a [1, 2]\nb: [" + "*a, " * 60_000 + "]\n").data()["b"]) == 60_000


def test_many_tag_directives_are_not_even_compared() -> None:
    text = "".join(f"%TAG !{i}! x\n" for i in range(100_000)) + "---\na: 1\n"
    assert refusal(text).startswith("f.yaml:1:1: directives other than %YAML are not read\n")


def test_a_second_document_is_refused_without_reading_it() -> None:
    assert refusal("a: 1\n---\n" + "%TAG ! x\n" * 10_000) == (
        "f.yaml:2:1: a second document starts here\n2 | ---\n  | ^^^\nfix: put each document in a file of its own"
    )


def test_many_problems_are_cut_and_cheap() -> None:
    with pytest.raises(DocumentError) as caught:
        parse("\n" * 1_000_000 + "".join(f"k{i}: .inf\n" for i in range(10_000)), "f.yaml")
    assert len(caught.value.problems) == documents.MAX_PROBLEMS
    assert str(caught.value).startswith("f.yaml:1000001:5: ")


REFUSED = [
    ("a: 1\nb: 2\na: 3\nb: 4\na: 5\n", """\
f.yaml:1:1: the key 'a' stands 3 times in one map, again at line 3, 5
1 | a: 1
  | ^
3 | a: 3
  | ^
5 | a: 5
  | ^
fix: remove or rename all but one
f.yaml:2:1: the key 'b' stands twice in one map, again at line 4
2 | b: 2
  | ^
4 | b: 4
  | ^
fix: remove or rename all but one"""),
    ("1: a\n'1': b\n", """\
f.yaml:1:1: the key '1' stands twice in one map, again at line 2
1 | 1: a
  | ^
2 | '1': b
  | ^^^
fix: remove or rename all but one"""),
    ("a: &a {}\nb: {<<: *a, <<: *a}\n", """\
f.yaml:2:5: the key '<<' stands twice in one map, again at line 2
2 | b: {<<: *a, <<: *a}
  |     ^^      ^^
fix: merge with one '<<: [*a, *b]'"""),
    ("a: !!python/object:os.system x\nb: .inf\nc: *nope\n? [x]\n: !set {}\n", """\
f.yaml:1:4: the tag '!!python/object:os.system' means nothing here
1 | a: !!python/object:os.system x
  |    ^^^^^^^^^^^^^^^^^^^^^^^^^
fix: remove it: a document is plain data
f.yaml:2:4: infinity and NaN are not JSON data
2 | b: .inf
  |    ^^^^
fix: write a finite number, or put it in quotes
f.yaml:3:4: nothing above is anchored as '&nope'
3 | c: *nope
  |    ^^^^^
fix: quote a text that starts with '*'
f.yaml:4:3: a list or map cannot be a key
4 | ? [x]
  |   ^^^
fix: use a string as the key
f.yaml:5:3: the tag '!set' means nothing here
5 | : !set {}
  |   ^^^^
fix: remove it: a document is plain data"""),
    ("base: &base 1\na: *bas\n", """\
f.yaml:2:4: nothing above is anchored as '&bas'
2 | a: *bas
  |    ^^^^
fix: did you mean '*base'?"""),
    ("a: &a [*a]\nb: &b {<<: *b}\n", """\
f.yaml:1:8: '*a' stands inside the value it means
1 | a: &a [*a]
  |        ^^
fix: write the value out
f.yaml:2:12: '*b' stands inside the value it means
2 | b: &b {<<: *b}
  |            ^^
fix: write the value out"""),
    ("a: {<<: 3}\n", """\
f.yaml:1:5: '<<' takes a map or a list of maps
1 | a: {<<: 3}
  |     ^^
fix: write '<<: *anchor'"""),
    ("- &k x\n- {*k : 1}\n", """\
f.yaml:2:4: an alias cannot be a key
2 | - {*k : 1}
  |    ^^
fix: write the key out"""),
    ("a: !!int x\n", """\
f.yaml:1:10: this text is not what the tag '!!int' says
1 | a: !!int x
  |          ^
fix: remove the tag or correct the text"""),
    ("a: 1e999\n", """\
f.yaml:1:4: this number is too large
1 | a: 1e999
  |    ^^^^^
fix: put it in quotes to keep it as text"""),
    ('a: "\\0"\n', """\
f.yaml:1:4: NUL and halves of character pairs are not text
1 | a: "\\0"
  |    ^^^^
fix: remove the escape"""),
    ("a: 1\x00\nb: \u2028\n", """\
f.yaml:1:5: the character U+0000 cannot stand in a document
1 | a: 1�
  |     ^
fix: remove it
f.yaml:2:4: the character U+2028 cannot be written as it is
2 | b: �
  |    ^
fix: remove it, or write "\\u2028" in double quotes"""),
    ("# a\rb: 1\n", """\
f.yaml:1:4: a carriage return stands here without a line feed
1 | # a�b: 1
  |    ^
fix: end lines with LF or CRLF"""),
    ("a: \ud800\n", """\
f.yaml:1:4: the character U+D800 cannot stand in a document
1 | a: �
  |    ^
fix: remove it"""),
    ("a: 1\n]\n", """\
f.yaml:2:1: this does not go on with the map that begins at line 1
2 | ]
  | ^
fix: indent it like the keys of that map, and quote a value that holds quotes or ': '"""),
    ("{a: 1}}\n", """\
f.yaml:1:7: this stands after the end of the document
1 | {a: 1}}
  |       ^
fix: indent it, or remove it"""),
    ("a: .nan\nb: 'x\n", """\
f.yaml:1:4: infinity and NaN are not JSON data
1 | a: .nan
  |    ^^^^
fix: write a finite number, or put it in quotes
f.yaml:2:4: this quote is never closed
2 | b: 'x
  |    ^
fix: close it, or write long text as a block after '|'"""),
]  # fmt: skip


@pytest.mark.parametrize(("text", "error"), REFUSED)
def test_a_refusal_says_what_where_and_what_to_do_for_all_it_found(text: str, error: str) -> None:
    assert refusal(text) == error


@pytest.mark.parametrize("text", [text for text, _ in REFUSED if "]" not in text[-2:]])
def test_the_parser_in_python_refuses_in_the_same_words(text: str) -> None:
    assert refusal(text, pure=True) == refusal(text)


SYNTAX = [
    # text                    place   what                                             fix
    ("a:\n\tb: 1\n",          "2:1",  "a tab indents this line",                       "indent with spaces"),
    ("a:\n  b: 1\n \tc: 1\n", "3:2",  "a tab indents this line",                       "indent with spaces"),
    ('a: "x\n',               "1:4",  "this quote is never closed",                    "close it, or write long text as a block after '|'"),
    ("a: b: c\n",             "1:5",  "a ':' stands where no key can be",              "quote a text that holds ': ', and indent a map under its key"),
    ("a: - b\n",              "1:4",  "a list cannot begin here",                      "start a new line for '- ', under its key"),
    ("a: 1\nfoo\nb: 2\n",     "2:1",  "this line has no ':' and belongs to nothing above", "write 'key: value', or indent it"),
    ("- a\nb: 1\n",           "2:1",  "this does not go on with the list that begins at line 1", "begin each of its lines with '- ', at the same column"),
    ("a: 'x' y\n",            "1:8",  "this does not go on with the map that begins at line 1", "indent it like the keys of that map, and quote a value that holds quotes or ': '"),
    ("a: [1, 2\nb: 3\n",      "1:4",  "this '[' is not closed, or a ',' is missing",   "close it with ']'"),
    ("a: {x: 1\n",            "1:4",  "this '{' is not closed, or a ',' is missing",   "close it with '}'"),
    ("a: *.py\n",             "1:5",  "'*' begins the name of an alias",               "put a text that starts with '*' in quotes"),
    ("a: & b\n",              "1:5",  "'&' begins the name of an anchor",              "put a text that starts with '&' in quotes"),
    ("a: @b\n",               "1:4",  "a value cannot begin with this character",      "put it in quotes"),
    ("a: ]\n",                "1:4",  "a value cannot begin like this",                "put it in quotes"),
    ("a: |x\n  y\n",          "1:5",  "a block text begins with '|' or '>', then '+', '-' or a digit, and nothing else", "start its text on the next line"),
    ("%YAML 3.0\n---\na\n",   "1:1",  "this is not YAML 1",                            "remove the %YAML line"),
]  # fmt: skip


@pytest.mark.parametrize("pure", [False, True])
@pytest.mark.parametrize(("text", "place", "what", "fix"), SYNTAX)
def test_what_cannot_be_read_is_explained(
    text: str, place: str, what: str, fix: str, pure: bool
) -> None:
    with pytest.raises(DocumentError) as caught:
        parse(text, "f.yaml", pure=pure)
    assert (str(caught.value.where), caught.value.what, caught.value.fix) == (
        f"f.yaml:{place}",
        what,
        fix,
    )


@pytest.mark.parametrize("pure", [False, True])
@pytest.mark.parametrize(
    ("text", "start"),
    [
        ('a: "\\q"\n', "there is no such escape in double quotes"),
        ('a: "\\xZZ"\n', "this escape is not a character"),
    ],
)
def test_an_escape_that_does_not_exist_is_explained(text: str, start: str, pure: bool) -> None:
    assert start in refusal(text, pure=pure)


@pytest.mark.parametrize("pure", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        'a: "\\ud800"\n',
        'a: "\\UFFFFFFFF"\n',
        "%YAML 1." + "9" * 5000 + "\n---\na\n",
        "a: " + "9" * 5000,
        "a: 0x" + "f" * 5000,
        "a: !!float " + "9" * 400,
    ],
)
def test_numbers_out_of_range_are_refused_by_both_parsers(text: str, pure: bool) -> None:
    assert refusal(text, pure=pure).startswith("f.yaml:1:")


# ── JSON ─────────────────────────────────────────────────────────────────────────────────────────

JSON_REFUSED = [
    # text                         what
    ('{"a": 1,\n "a": 2}',         ["1:2: the key 'a' stands twice in one object, again at line 2"]),
    ('{"a": {"b": 1, "b": 2}, "\\u0061": NaN}', ["1:2: the key 'a' stands twice in one object, again at line 1",
                                                 "1:8: the key 'b' stands twice in one object, again at line 1",
                                                 "1:35: infinity and NaN are not JSON data"]),
    ("[1, -Infinity]",             ["1:5: infinity and NaN are not JSON data"]),
    ("[1e999, -1e999]",            ["1:2: this number is too large", "1:9: this number is too large"]),
    ("9" * 5000,                   ["1:1: this number has too many digits"]),
    ('["\\ud800", "\\ud83d\\ude00"]', ["1:2: this string holds half of a character pair"]),
    ('["\ud800"]',                 ["1:2: this string holds half of a character pair"]),
    ("[1,\n 2",                    ["2:3: a ',' or a closing bracket is missing here"]),
    ("[1,]",                       ["1:3: nothing follows this ','"]),
    ('{"a": [],\n}',               ["1:9: nothing follows this ','"]),
    ("[,]",                        ["1:2: a value is missing here"]),
    ('[1,"]"}',                    ["1:7: a ',' or a closing bracket is missing here"]),
    ("{'a': 1}",                   ["1:2: a key in double quotes is missing"]),
    ('{"a" 1}',                    ["1:6: a ':' is missing after the key"]),
    ('{"a": }',                    ["1:7: a value is missing here"]),
    ('{"a": 1} 2',                 ["1:10: this stands after the end of the data"]),
    ('["a',                        ["1:2: this string is never closed"]),
    ('["a\n"]',                    ["1:4: a string cannot hold a control character"]),
    ('["\\q"]',                    ["1:3: there is no such escape"]),
    ("",                           ["1:1: a value is missing here"]),
    ("a,b\n1,2\n",                 ["1:1: this is not JSON"]),
    ('{"a": 1, "a": 2, x}',        ["1:2: the key 'a' stands twice in one object, again at line 1",
                                    "1:18: a key in double quotes is missing"]),
    ("\ufeff{'a'}",                ["1:2: a key in double quotes is missing"]),
    ("1e999a",                     ["1:1: this number is too large", "1:6: this stands after the end of the data"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "problems"), JSON_REFUSED)
def test_json_that_two_readers_could_read_differently_is_refused(
    text: str, problems: list[str]
) -> None:
    with pytest.raises(DocumentError) as caught:
        parse_json(text, "f.json")
    found = [f"{problem.where}: {problem.what}" for problem in caught.value.problems]
    assert found == [f"f.json:{problem}" for problem in problems]
    assert all(problem.fix for problem in caught.value.problems)


def test_an_error_in_json_shows_no_data() -> None:
    for text in ('{"a": "s3cret", "a": 1}', '["s3cret" 1]', '["s3cret", ' + "[" * 70 + "]" * 71):
        with pytest.raises(PlaitError) as caught:
            parse_json(text, "f.json")
        assert str(caught.value).startswith("f.json:1:")
        assert "s3cret" not in str(caught.value)


def test_json_may_be_64_levels_deep_and_no_deeper() -> None:
    assert parse_json("[" * 64 + "]" * 64, "f.json")
    for text in ("[" * 65 + "]" * 65, '{"a":' * 100_000, "[" * 65 + "1" + "]" * 65):
        with pytest.raises((LimitError, DocumentError)) as caught:
            parse_json(text, "f.json")
        assert caught.value.what == "this is nested deeper than 64 levels"


# ── Files ────────────────────────────────────────────────────────────────────────────────────────


def test_a_file_is_loaded_under_its_own_name(tmp_path: Path) -> None:
    path = tmp_path / "flow.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: \xc3\xa9\r\n")
    root = load(path)
    assert root.data() == {"a": 1, "b": "é"}
    assert str(root.at("b").span) == f"{path}:2:4"  # type: ignore[union-attr]  # it is there


def test_a_json_file_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "items.json").write_text('[{"a": 1}]')
    assert load_json(str(tmp_path / "items.json")) == [{"a": 1}]


def unloadable(path: Path | str) -> PlaitError:
    with pytest.raises(PlaitError) as caught:
        load(path)
    return caught.value


def test_a_missing_file_names_its_nearest_neighbour(tmp_path: Path) -> None:
    (tmp_path / "flow.yaml").write_text("a: 1")
    wrong = tmp_path / "flwo.yaml"
    assert (
        str(unloadable(wrong))
        == f"{wrong}: there is no such file\nfix: did you mean '{tmp_path / 'flow.yaml'}'?"
    )


def test_the_name_of_a_neighbour_begins_no_line(tmp_path: Path) -> None:
    (tmp_path / "flow\n::error::x.yaml").write_text("a: 1")
    fix = f"did you mean '{tmp_path}/flow�::error::x.yaml'?"
    assert unloadable(tmp_path / "flow::error::x.yaml").fix == fix


def test_what_is_not_a_readable_file_is_an_input_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("x")
    expected: list[tuple[Path | str, str]] = [
        (tmp_path, "this is a directory, not a file"),
        (tmp_path / "pipe", "this is a pipe or device, not a file"),
        (tmp_path / "nowhere" / "f.yaml", "there is no such file"),
        (tmp_path / "file" / "f.yaml", "there is no such file"),
        (tmp_path / ("x" * 1000), "this file cannot be read: File name too long"),
        ("a\0b", "this is not a path"),
    ]
    for path, what in expected:
        error = unloadable(path)
        assert (type(error), error.what, bool(error.fix)) == (InputError, what, True)


@by_ordinary_user
def test_a_file_that_may_not_be_read_says_so(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text("a: 1")
    path.chmod(0)
    assert unloadable(path).what == "this file may not be read"


def test_a_large_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    with path.open("wb") as file:
        file.truncate(10**12)
    error = unloadable(path)
    assert isinstance(error, LimitError)
    assert error.what == "this file is larger than 4,194,304 bytes"


def test_bytes_that_are_not_utf_8_are_shown_at_their_line(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes("a: é\nb: ".encode() + b"\xff\n")
    assert str(unloadable(path)) == (
        f"{path}:2:4: byte 9 of this file is not UTF-8\nfix: save the file as UTF-8"
    )


# ── Layers, paths, fields ────────────────────────────────────────────────────────────────────────


def layers(*texts: str) -> Node:
    return merge([parse(text, f"{number}.yaml") for number, text in enumerate(texts, 1)])


LAYERS = [
    (("{a: 1, b: 2}", "{b: 3, c: 4}"),            {"a": 1, "b": 3, "c": 4}),
    (("{a: {x: 1, y: 2}}", "{a: {y: 3}}"),        {"a": {"x": 1, "y": 3}}),
    (("{a: [1, 2]}", "{a: [3]}"),                 {"a": [3]}),
    (("{a: {x: 1}}", "{a: null}"),                {"a": None}),
    (("{a: 1}", "{a: {x: 1}}", "{a: {y: 2}}"),    {"a": {"x": 1, "y": 2}}),
    (("{a: 1}", "[1]"),                           [1]),
    (("{a: 1}",),                                 {"a": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("texts", "value"), LAYERS)
def test_later_layers_win_and_only_maps_are_merged(texts: tuple[str, ...], value: object) -> None:
    assert json.dumps(layers(*texts).data()) == json.dumps(value)


def test_each_leaf_knows_the_layer_it_came_from() -> None:
    merged = layers("a: 1\nb:\n  c: 2\n  d: [3, {}]\n", "b:\n  c: 4\n", "e.f: 5\n")
    assert {path: str(span) for path, span in origins(merged).items()} == {
        "a": "1.yaml:1:4",
        "b.c": "2.yaml:2:6",
        "b.d.0": "1.yaml:4:7",
        "b.d.1": "1.yaml:4:10",
        '["e.f"]': "3.yaml:1:6",
    }
    assert isinstance(merged, Mapping)
    assert str(merged.key_span("b")) == "2.yaml:1:1"


@settings(deadline=None)
@given(value=plain_data)
def test_every_leaf_is_found_again_by_its_path(value: object) -> None:
    node = parse(json.dumps(value, ensure_ascii=False), "f.yaml")
    for path, span in origins(node).items():
        found = node.at(path)
        assert found is not None
        assert found.span == span


def test_a_path_is_text_or_steps_and_may_lead_nowhere() -> None:
    node = parse("a: [{b.c: 1}]\n", "f.yaml")
    for path in ('a.0["b.c"]', 'a[0]["b.c"]', ("a", 0, "b.c")):
        assert scalar(node.at(path)).value == 1
    for nowhere in ("b", "a.1", "a.x", "a.-1", 'a.0["b.c"].d', ("a", -1)):
        assert node.at(nowhere) is None
    with pytest.raises(InternalError):
        node.at("a..b")


def test_no_layers_are_our_own_mistake() -> None:
    with pytest.raises(InternalError):
        merge([])


def test_unknown_fields_are_named_with_place_and_nearest_field() -> None:
    step = mapping("shell: ls\n\ntmeout: 3\nxyz: 1\n", "flow.yaml")
    assert [str(problem) for problem in check_keys(step, ["shell", "timeout"], kind="step")] == [
        "flow.yaml:3:1: 'tmeout' is not a field of a step\n3 | tmeout: 3\n  | ^^^^^^\nfix: did you mean 'timeout'?",
        "flow.yaml:4:1: 'xyz' is not a field of a step\n4 | xyz: 1\n  | ^^^\nfix: a step has: shell, timeout",
    ]
    assert check_keys(step, ["shell", "tmeout", "xyz"], kind="step") == []
    assert check_keys(step, ["a"], kind="agent")[0].what == "'shell' is not a field of an agent"


def test_a_name_in_a_message_is_cut_and_cannot_drive_a_terminal() -> None:
    step = mapping('"\\e[31m' + "x" * 100 + '": 1\n')
    assert (
        check_keys(step, ["a"], kind="step")[0].what
        == f"'�[31m{'x' * 54}…' is not a field of a step"
    )


MEANT_FILES = [
    # files beside it              what is named   what is suggested
    (["flow.yaml"],                "flwo.yaml",    "flow.yaml"),
    (["flow.yaml"],                "flow.yml",     "flow.yaml"),
    (["flow.yaml", "step.yaml"],   "nofile.yaml",  None),
    (["p.yaml", "step.yaml"],      "nope.yaml",    None),
]  # fmt: skip


@pytest.mark.parametrize(("beside", "named", "suggested"), MEANT_FILES)
def test_a_missing_file_suggests_one_whose_name_is_alike_without_its_ending(
    beside: list[str], named: str, suggested: str | None, tmp_path: Path
) -> None:
    for name in beside:
        (tmp_path / name).write_text("")
    with pytest.raises(InputError) as missing:
        read_text(str(tmp_path / named), 100)
    assert missing.value.fix == (
        f"did you mean '{tmp_path / suggested}'?" if suggested else "check the path"
    )
