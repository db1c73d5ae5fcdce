"""Every production and ambiguity of the grammar; what is not ours stays text, byte for byte."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from plait.core.errors import InputError, LimitError, PlaitError, TemplateSyntaxError
from plait.template.grammar import (
    MAX_DEPTH,
    MAX_FLAWS,
    MAX_TEXT,
    parse,
    parse_cache_counts,
    parse_path,
)
from plait.template.nodes import (
    Alternative,
    Computed,
    ContextPlaceholder,
    EnvPlaceholder,
    Extract,
    Filter,
    Format,
    InputPlaceholder,
    Literal,
    ParamPlaceholder,
    Parts,
    Path,
    PromptPlaceholder,
    Text,
    placeholders,
)
from plait.template.profiles import PROFILES
from plait.template.template import compile_template

ALL = tuple(PROFILES)


def context(start: int, end: int, *paths: Path, **more: Any) -> ContextPlaceholder:
    return ContextPlaceholder(start, end, tuple(Alternative(path) for path in paths), **more)


A, B = Path("a"), Path("b")

# ── productions ──────────────────────────────────────────────────────────

CONTEXT_PARTS: list[tuple[str, Parts]] = [
    ("",                    ()),
    ("text",                (Text("text"),)),
    ("${a}",                (context(0, 4, A),)),
    ("x${a}y",              (Text("x"), context(1, 5, A), Text("y"))),
    ("${ a }",              (context(0, 6, A),)),
    ("${\n a\t}",           (context(0, 7, A),)),
    ("${a}${b}",            (context(0, 4, A), context(4, 8, B))),
    ("${é}",                (context(0, 4, Path("é")),)),
    ("${a_1}",              (context(0, 6, Path("a_1")),)),
    ("${${a}}",             (Text("${"), context(2, 6, A), Text("}"))),
    ("${a.b}",              (context(0, 6, Path("a", ("b",))),)),
    ("${a.b-c}",            (context(0, 8, Path("a", ("b-c",))),)),
    ("${a.0}",              (context(0, 6, Path("a", (0,))),)),
    ("${a.-1}",             (context(0, 7, Path("a", (-1,))),)),
    ("${a[0]}",             (context(0, 7, Path("a", (0,))),)),
    ("${a[-2]}",            (context(0, 8, Path("a", (-2,))),)),
    ('${a["b c"]}',         (context(0, 11, Path("a", ("b c",))),)),
    ("${a['0']}",           (context(0, 9, Path("a", ("0",))),)),
    ('${a["}"]}',           (Text('${a["}"]}'),)),
    ('${a["\\}"]}',         (context(0, 10, Path("a", ("}",))),)),
    ("${a.b[1].c}",         (context(0, 11, Path("a", ("b", 1, "c"))),)),
    ("${a || b}",           (context(0, 9, A, B),)),
    ("${a||b||a}",          (context(0, 10, A, B, A),)),
    ("${a...}",             (context(0, 7, A, spread=True),)),
    ("${a.b...}",           (context(0, 9, Path("a", ("b",)), spread=True),)),
    ("${a | upper}",        (context(0, 12, A, filters=(Filter("upper"),)),)),
    ("${a|trim|lower}",     (context(0, 15, A, filters=(Filter("trim"), Filter("lower"))),)),
    ("${a | join(', ')}",   (context(0, 17, A, filters=(Filter("join", (", ",)),)),)),
    ("${a | default(3)}",   (context(0, 17, A, filters=(Filter("default", (3,)),)),)),
    ("${a | default(x)}",   (context(0, 17, A, filters=(Filter("default", ("x",)),)),)),
    ("${a|default(null)}",  (context(0, 18, A, filters=(Filter("default", (None,)),)),)),
    ("${a || b | upper}",   (context(0, 17, A, B, filters=(Filter("upper"),)),)),
    ("${a:-}",              (context(0, 6, A, default=()),)),
    ("${a:-d}",             (context(0, 7, A, default=(Text("d"),)),)),
    ("${a:- d }",           (context(0, 9, A, default=(Text(" d "),)),)),
    ("${a:-b:-c}",          (context(0, 10, A, default=(Text("b:-c"),)),)),
    ("${a | trim :- d}",    (context(0, 16, A, filters=(Filter("trim"),), default=(Text(" d"),)),)),
    ("${a:-${b}}",          (context(0, 10, A, default=(context(5, 9, B),)),)),
    ('${a:-{"k":1}}',       (context(0, 13, A, default=(Text('{"k":1}'),)),)),
    ("${a:-x\\}y}",         (context(0, 10, A, default=(Text("x}y"),)),)),
    ("${a:-\\{}",           (context(0, 8, A, default=(Text("{"),)),)),
    ("${a:-$${b}}",         (context(0, 11, A, default=(Text("${b}"),)),)),
    ("${a:?}",              (context(0, 6, A, required=""),)),
    ("${a:? give ${b} }",   (context(0, 17, A, required="give ${b}"),)),
    ("${a:json}",           (ContextPlaceholder(0, 9, (Alternative(A, (Format("json"),)),)),)),
    ("${a:lines:json}",     (ContextPlaceholder(0, 15, (Alternative(A, (Format("lines"), Format("json"))),)),)),
    ("${a:*.py}",           (ContextPlaceholder(0, 9, (Alternative(A, (Format("glob", "*.py"),)),)),)),
    ("${a:src/*}",          (ContextPlaceholder(0, 10, (Alternative(A, (Format("glob", "src/*"),)),)),)),
    ("${a:[ab].c}",         (ContextPlaceholder(0, 11, (Alternative(A, (Format("glob", "[ab].c"),)),)),)),
    ("${a:json:-d}",        (ContextPlaceholder(0, 12, (Alternative(A, (Format("json"),)),), default=(Text("d"),)),)),
    ("${'x'}",              (ContextPlaceholder(0, 6, (Alternative(Literal("x")),)),)),
    ("${a || 'x y'}",       (ContextPlaceholder(0, 13, (Alternative(A), Alternative(Literal("x y")))),)),
    ('${a || "x"}',         (ContextPlaceholder(0, 11, (Alternative(A), Alternative(Literal("x")))),)),
    ("${a || 3}",           (ContextPlaceholder(0, 9, (Alternative(A), Alternative(Literal(3)))),)),
    ("${a || -1.5e3}",      (ContextPlaceholder(0, 14, (Alternative(A), Alternative(Literal(-1500.0)))),)),
    ("${a || true}",        (ContextPlaceholder(0, 12, (Alternative(A), Alternative(Literal(True)))),)),
    ("${a || null}",        (ContextPlaceholder(0, 12, (Alternative(A), Alternative(Literal(None)))),)),
    ("${true}",             (ContextPlaceholder(0, 7, (Alternative(Literal(True)),)),)),
    ("${true.x}",           (context(0, 9, Path("true", ("x",))),)),
    ("${env.HOME}",         (context(0, 11, Path("env", ("HOME",))),)),
    ("${uuid}",             (context(0, 7, Path("uuid")),)),
    ("${file:x.txt}",       (ContextPlaceholder(0, 13, (Alternative(Computed("file", (Text("x.txt"),))),)),)),
    ("${file:${a}/b}",      (ContextPlaceholder(0, 14, (Alternative(Computed("file", (context(7, 11, A), Text("/b")))),)),)),
    ("${file:x:-d}",        (ContextPlaceholder(0, 12, (Alternative(Computed("file", (Text("x"),))),), default=(Text("d"),)),)),
    ("${file:x | trim}",    (ContextPlaceholder(0, 16, (Alternative(Computed("file", (Text("x"),))),), filters=(Filter("trim"),)),)),
    ("${file:x || a}",      (ContextPlaceholder(0, 14, (Alternative(Computed("file", (Text("x"),))), Alternative(A))),)),
    ("${file:-d}",          (context(0, 10, Path("file"), default=(Text("d"),)),)),
    ("${file:./-d}",        (ContextPlaceholder(0, 12, (Alternative(Computed("file", (Text("./-d"),))),)),)),
    ("${file}",             (context(0, 7, Path("file")),)),
    ("${cmd:ls | wc -l}",   (ContextPlaceholder(0, 17, (Alternative(Computed("cmd", (Text("ls | wc -l"),))),)),)),
    ("${date:%Y-%m-%d}",    (ContextPlaceholder(0, 16, (Alternative(Computed("date", (Text("%Y-%m-%d"),))),)),)),
    ("${date:%H:%M}",       (ContextPlaceholder(0, 13, (Alternative(Computed("date", (Text("%H:%M"),))),)),)),
    ("${json:k.0:from:a}",  (ContextPlaceholder(0, 18, (Alternative(Extract(Path("k", (0,)), A)),)),)),
    ("${json:k:from:a.b}",  (ContextPlaceholder(0, 18, (Alternative(Extract(Path("k"), Path("a", ("b",)))),)),)),
    ("$${a}",               (Text("${a}"),)),
    ("$${a:-${b}} ${b}",    (Text("${a:-${b}} "), context(12, 16, B))),
    ("$${a",                (Text("${a"),)),
    ("$$${a}",              (Text("$$"), context(2, 6, A))),
    ("$$$${a}",             (Text("$$${a}"),)),
    ("{a} {{a}} {input:a",  (Text("{a} {{a}} {input:a"),)),
]  # fmt: skip


@pytest.mark.parametrize(("text", "parts"), CONTEXT_PARTS)
@pytest.mark.parametrize("profile", ["workflow", "graph"])
def test_a_context_placeholder_is_read(profile: str, text: str, parts: Parts) -> None:
    assert parse(text, profile).parts == parts


BARE: list[tuple[str, Parts]] = [
    ("$a",       (context(0, 2, A, bare=True),)),
    ("$a.b",     (context(0, 2, A, bare=True), Text(".b"))),
    ("$a1_-",    (context(0, 4, Path("a1_"), bare=True), Text("-"))),
    ("x$a$b",    (Text("x"), context(1, 3, A, bare=True), context(3, 5, B, bare=True))),
    ("$é",       (Text("$é"),)),
    ("$aé",      (context(0, 2, A, bare=True), Text("é"))),
    ("$$a",      (Text("$$a"),)),
    ("$1a",      (Text("$1a"),)),
    ("${A}",     (context(0, 4, Path("A")),)),
    ("${_1}",    (context(0, 5, Path("_1")),)),
    ("${a:-$b}", (context(0, 8, A, default=(context(5, 7, B, bare=True),)),)),
]  # fmt: skip


@pytest.mark.parametrize(("text", "parts"), BARE)
def test_a_shell_style_placeholder_is_read_in_a_workflow_alone(text: str, parts: Parts) -> None:
    assert parse(text, "workflow").parts == parts
    if "${" not in text:
        for profile in ("graph", "directive", "prompt", "config"):
            assert parse(text, profile).parts == (Text(text),)


INPUT: list[tuple[str, Parts]] = [
    ("{input:k}",               (InputPlaceholder(0, 9, "k"),)),
    ("{input:k?}",              (InputPlaceholder(0, 10, "k", optional=True),)),
    ("{input:0_k}",             (InputPlaceholder(0, 11, "0_k"),)),
    ("{input:k:}",              (InputPlaceholder(0, 10, "k", default=()),)),
    ("{input:k:d}",             (InputPlaceholder(0, 11, "k", default=(Text("d"),)),)),
    ("{input:k|d e}",           (InputPlaceholder(0, 13, "k", default=(Text("d e"),)),)),
    ("{input:k:a:b|c}",         (InputPlaceholder(0, 15, "k", default=(Text("a:b|c"),)),)),
    ("{input:k:{}}",            (InputPlaceholder(0, 12, "k", default=(Text("{}"),)),)),
    ("{input:k:\\{\\}}",         (InputPlaceholder(0, 14, "k", default=(Text("{}"),)),)),
    ("{input:k:\\}}",           (InputPlaceholder(0, 12, "k", default=(Text("}"),)),)),
    ("{input:k:{input:j}}",     (InputPlaceholder(0, 19, "k", default=(InputPlaceholder(9, 18, "j"),)),)),
    ("{{input:k}}",             (Text("{input:k}"),)),
    ("{{input:k:{a}}}",         (Text("{input:k:{a}}"),)),
    ("{{input:k} ",             (Text("{"), InputPlaceholder(1, 10, "k"), Text(" "))),
    ("{input:}",                (Text("{input:}"),)),
    ("{input: k}",              (Text("{input: k}"),)),
    ("{input:k }",              (Text("{input:k }"),)),
    ("{input:k??}",             (Text("{input:k??}"),)),
    ("{input:k.j}",             (Text("{input:k.j}"),)),
    ("{input:k",                (Text("{input:k"),)),
    ("{Input:k}",               (Text("{Input:k}"),)),
    ('{"a": "{input:k}"}',      (Text('{"a": "'), InputPlaceholder(7, 16, "k"), Text('"}'))),
]  # fmt: skip


@pytest.mark.parametrize(("text", "parts"), INPUT)
@pytest.mark.parametrize("profile", ["directive", "graph"])
def test_an_input_placeholder_is_read(profile: str, text: str, parts: Parts) -> None:
    assert parse(text, profile).parts == parts


BRACES: list[tuple[str, list[Any]]] = [
    # text              parts: text as text, placeholders as (start, end, name)
    ("{a}",             [(0, 3, "a")]),
    ("{0}",             [(0, 3, "0")]),
    ("{a_1}",           [(0, 5, "a_1")]),
    ("{a}{b}",          [(0, 3, "a"), (3, 6, "b")]),
    ("{{a}}",           ["{a}"]),
    ("{{a}}{{b}}",      ["{a}{b}"]),
    ("{{{a}}}",         ["{{a}}"]),
    ("{{a}",            ["{", (1, 4, "a")]),
    ("{a}}",            [(0, 3, "a"), "}"]),
    ("{{{{a}}}}",       ["{{{a}}}"]),
    ('{"k": {v}}',      ['{"k": ', (6, 9, "v"), "}"]),
    ("{}",              ["{}"]),
    ("{ a }",           ["{ a }"]),
    ("{a.b}",           ["{a.b}"]),
    ("{a b}",           ["{a b}"]),
    ("{é}",             ["{é}"]),
    ("{a",              ["{a"]),
    ("{{ a }}",         ["{{ a }}"]),
    ("{a:x}",           ["{a:x}"]),
    ("{% if a %}{a}",   ["{% if a %}", (10, 13, "a")]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), BRACES)
@pytest.mark.parametrize(
    ("profile", "kind"), [("prompt", PromptPlaceholder), ("config", ParamPlaceholder)]
)
def test_a_brace_placeholder_is_read(
    profile: str, kind: Any, text: str, expected: list[Any]
) -> None:
    wanted = tuple(Text(it) if isinstance(it, str) else kind(*it) for it in expected)
    assert parse(text, profile).parts == wanted


ENV: list[tuple[str, Parts]] = [
    ("${A}",                      (EnvPlaceholder(0, 4, "A"),)),
    ("${A_1}",                    (EnvPlaceholder(0, 6, "A_1"),)),
    ("${ A }",                    (EnvPlaceholder(0, 6, "A"),)),
    ("${A:-}",                    (EnvPlaceholder(0, 6, "A", default=()),)),
    ("${A:-d}",                   (EnvPlaceholder(0, 7, "A", default=(Text("d"),)),)),
    ("${A:-${B:-c}}",             (EnvPlaceholder(0, 13, "A", default=(EnvPlaceholder(5, 12, "B", default=(Text("c"),)),)),)),
    ("${U:-http://h/{id}}",       (EnvPlaceholder(0, 19, "U", default=(Text("http://h/"), ParamPlaceholder(14, 18, "id"))),)),
    ('${X:-{"k":1}}',             (EnvPlaceholder(0, 13, "X", default=(Text('{"k":1}'),)),)),
    ("${A:?say so}",              (EnvPlaceholder(0, 12, "A", required="say so"),)),
    ("${A:-\\{b\\}}",             (EnvPlaceholder(0, 11, "A", default=(Text("{b}"),)),)),
    ("${A:-\\{{b}}",              (EnvPlaceholder(0, 11, "A", default=(Text("{"), ParamPlaceholder(7, 10, "b"))),)),
    ("${a}",                      (Text("${a}"),)),
    ("${model} {model}",          (Text("${model} "), ParamPlaceholder(9, 16, "model"))),
    ("${state.x}",                (Text("${state.x}"),)),
    ("${A.b}",                    (Text("${A.b}"),)),
    ("${A|{b}}",                  (Text("${A|{b}}"),)),
    ("$A {A}",                    (Text("$A "), ParamPlaceholder(3, 6, "A"))),
    ("$${A}",                     (Text("${A}"),)),
    ("$${A:-{b}} {b}",            (Text("${A:-{b}} "), ParamPlaceholder(11, 14, "b"))),
    ("${A",                       (Text("${A"),)),
]  # fmt: skip


@pytest.mark.parametrize(("text", "parts"), ENV)
def test_a_placeholder_of_the_environment_is_read(text: str, parts: Parts) -> None:
    assert parse(text, "config").parts == parts


@pytest.mark.parametrize("text", ["${A}", "${A:-d}", "${A:-${b}}", "${HOME}/x", "${_}"])
def test_a_graph_leaves_the_environment_to_the_next_stage_whole(text: str) -> None:
    assert parse(text, "graph").parts == (Text(text),)


@pytest.mark.parametrize("text", ["{a}", "{{a}}", "$a", "${a}", "$${a}", '{"k": 1}', "${A:-x}"])
def test_what_is_not_live_in_a_profile_is_text(text: str) -> None:
    assert parse(text, "directive").parts == (Text(text),)


# ── the shell's own, and other languages ─────────────────────────────────

SHELL = [
    *(
        "${x%.c}",
        "${x%%.*}",
        "${x#*/}",
        "${x##*/}",
        "${x:0:3}",
        "${x: -1}",
        "${x:(-1)}",
        "${x:1}",
        "${x:=d}",
    ),
    *(
        "${x:+d}",
        "${x+d}",
        "${x-d}",
        "${x=d}",
        "${x?e}",
        "${x/a/b}",
        "${x//a/b}",
        "${x/#a/b}",
        "${x/%a/b}",
    ),
    *(
        "${x[@]}",
        "${x[*]}",
        "${x[i]}",
        "${x[$i]}",
        "${#x}",
        "${#x[@]}",
        "${!x}",
        "${!x*}",
        "${!x@}",
        "${!x[@]}",
    ),
    *(
        "${x^}",
        "${x^^}",
        "${x,}",
        "${x,,}",
        "${x~}",
        "${x~~}",
        "${x@Q}",
        "${x@E}",
        "${x@U}",
        "${@}",
        "${*}",
    ),
    *(
        "${#}",
        "${?}",
        "${-}",
        "${$}",
        "${!}",
        "${0}",
        "${1}",
        "${10}",
        "${1:-x}",
        "${@:2}",
        "${*%.c}",
    ),
    *(
        "$1",
        "$10",
        "$?",
        "$@",
        "$*",
        "$#",
        "$$",
        "$!",
        "$-",
        "$0",
        "$(ls)",
        "$((1 + 2))",
        "$[1+2]",
        "$'\\n'",
        '$"x"',
    ),
    *(
        "`ls`",
        "a$",
        "$",
        "$ x",
        "$.",
        "$/",
        "cost: 5$",
        "x=$((x+1))",
        "$(($#))",
        "for ((i=0;i<3;i++))",
        "${x%\\}}",
    ),
    *("${x%${y%.c}}", "${x/\\//-}", "${x//[^a-z]/}", "${x:$i:1}"),
]
OTHERS = [
    *('{"a": {"b": [1, {}]}}', '{"q": "{\\"x\\": 1}"}', "{'a': 1}", "[{}, {}]"),
    *(
        "awk '{print $1, $NF}'",
        "awk 'BEGIN{FS=\":\"} {s+=$2} END{print s}'",
        "jq '.[] | {a: .b, c}'",
        "jq '{(.k): .v}'",
    ),
    *(
        "$(VAR) $@ $< $^ $(shell ls)",
        "$$x",
        "$$HOME",
        "${{ github.sha }}",
        "${{ matrix.os == 'x' && y }}",
    ),
    *(
        "\\frac{a}{b}",
        "$x^2 + {y}$",
        "\\begin{document}",
        "{{ user.name }}",
        "{% for x in y %}",
        "{# c #}",
        "{{{raw}}}",
    ),
    *(
        "sed 's/a$/b/'",
        "grep -E '^a{2,3}$'",
        "find . -exec ls {} +",
        "xargs -I{} echo {}",
        "printf '%s\\n'",
        "a{b,c}d",
    ),
    *(
        "@{u}",
        "HEAD@{1}",
        "stash@{0}",
        "%{http_code}",
        "#{ruby}",
        "<%= erb %>",
        "{0:>10}",
        "f'{x!r}'",
        "C:\\{a}\\b",
    ),
    *(
        "<script>let s = `x`</script>",
        "body { color: red }",
        "\\$x",
        "&{a}",
        "${",
        "}",
        "}}",
        "{",
        "{{",
        "\\}",
    ),
]


@pytest.mark.parametrize("text", SHELL)
@pytest.mark.parametrize("around", ["{}", "a {} b", "\n{}\n", "'{}'", '"{}"'])
def test_what_belongs_to_the_shell_is_kept_byte_for_byte(text: str, around: str) -> None:
    whole = around.replace("{}", text)
    assert compile_template(whole, "workflow").render({}) == whole
    assert compile_template(whole, "workflow").render({}, strict=True) == whole


@pytest.mark.parametrize("text", SHELL)
def test_what_belongs_to_the_shell_is_no_flaw(text: str) -> None:
    parsed = parse(text, "workflow")
    assert parsed.flaws == ()
    assert [
        placeholder
        for placeholder in placeholders(parsed.parts)
        if not (isinstance(placeholder, ContextPlaceholder) and placeholder.bare)
    ] == []


@pytest.mark.parametrize("text", OTHERS)
@pytest.mark.parametrize("profile", ["workflow", "graph", "directive"])
def test_other_languages_are_text(profile: str, text: str) -> None:
    assert compile_template(text, profile).render(
        {"x": "NO", "a": "NO", "user": {"name": "NO"}}
    ) in (
        text,
        text.replace("$x", "NO") if profile == "workflow" and "$$x" not in text else text,
    )


@pytest.mark.parametrize("text", ["$NOPE", "a $NOPE b", "$nope.x", "${a:-$NOPE}"])
def test_an_unknown_shell_style_name_is_never_an_error(text: str) -> None:
    kept = "$NOPE" if text.startswith("${") else text
    assert compile_template(text).render({}, strict=True) == kept


# ── flaws ────────────────────────────────────────────────────────────────

FIX = "write '${name.key}', or '$${' for a literal '${'"
FORMATS = "formats: :json, :lines, :csv, :raw, :int, :path, :opt, or a glob such as :*.py"
FILTERS = "filters: json, length, keys, upper, lower, trim, first, last, default, join"
MALFORMED = [
    # text               place    what
    ("x ${a",            (2, 4),  "malformed placeholder: '${' is never closed"),
    ("${}",              (0, 3),  "malformed placeholder: a name is missing here"),
    ("${ }",             (0, 4),  "malformed placeholder: a name is missing here"),
    ("${.}",             (0, 4),  "malformed placeholder: this is not a name"),
    ("${a.}",            (0, 5),  "malformed placeholder: a key is missing after '.'"),
    ("${a..b}",          (0, 7),  "malformed placeholder: a key is missing after '.'"),
    ("${a b}",           (0, 6),  "malformed placeholder: this cannot follow"),
    ("${a ||}",          (0, 7),  "malformed placeholder: a name is missing here"),
    ("${a | }",          (0, 7),  "malformed placeholder: a filter is missing after '|'"),
    ("${a | join(}",     (0, 12), "malformed placeholder: an argument is missing in '( )'"),
    ("${a | join('x'}",  (0, 15), "malformed placeholder: ')' is missing"),
    ("${'a}",            (0, 5),  "malformed placeholder: the quote ' is never closed"),
    ("${a.b[x]}",        (0, 9),  "malformed placeholder: an index is a number or a quoted key"),
    ("${a.b:}",          (0, 7),  "malformed placeholder: a format is missing after ':'"),
    ("${file:}",         (0, 8),  "malformed placeholder: 'file:' needs an argument"),
    ("${json:a}",        (0, 9),  "malformed placeholder: 'json:' is written json:PATH:from:NAME"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "place", "what"), MALFORMED)
@pytest.mark.parametrize("profile", ["workflow", "graph"])
def test_a_malformed_placeholder_is_text_and_a_flaw(
    profile: str, text: str, place: tuple[int, int], what: str
) -> None:
    flaws = parse(text, profile).flaws
    assert [
        (flaw.start, flaw.end, flaw.what, flaw.fix, flaw.code, flaw.fatal) for flaw in flaws
    ] == [(*place, what, FIX, "malformed-placeholder", False)]
    assert compile_template(text, "workflow").render({}) == text
    with pytest.raises(TemplateSyntaxError) as caught:
        compile_template(text, "workflow").render({}, strict=True)
    assert caught.value.what == what


FATAL = [
    ("${x:jsn}",         "unknown format ':jsn'",                          f"did you mean ':json'? {FORMATS}", "unknown-format"),
    ("${x:Q}",           "unknown format ':Q'",                            FORMATS,                            "unknown-format"),
    ("${x | uper}",      "unknown filter 'uper'",                          f"did you mean 'upper'? {FILTERS}", "unknown-filter"),
    ("${x | zzzz}",      "unknown filter 'zzzz'",                          FILTERS,                            "unknown-filter"),
    ("${x | upper(1)}",  "filter 'upper' takes 0 arguments, not 1",        "write '| upper'",                  "filter-arguments"),
    ("${x | join}",      "filter 'join' takes 1 argument, not 0",          "write '| join(x)'",                "filter-arguments"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "what", "fix", "code"), FATAL)
@pytest.mark.parametrize("strict", [False, True])
def test_an_unknown_format_or_filter_is_always_an_error(
    text: str, what: str, fix: str, code: str, strict: bool
) -> None:
    with pytest.raises(TemplateSyntaxError) as caught:
        compile_template(f"  {text}").render({"x": 1}, strict=strict)
    width = "^" * len(text)
    assert str(caught.value) == f"<template>:1:3: {what}\n1 |   {text}\n  |   {width}\nfix: {fix}"
    assert caught.value.code == code


def test_all_flaws_of_a_template_are_reported_together() -> None:
    with pytest.raises(TemplateSyntaxError) as caught:
        compile_template("${a:jsn}\n${} ${b|uper}").render({}, strict=True)
    assert str(caught.value) == (
        "<template>:1:1: unknown format ':jsn'\n1 | ${a:jsn}\n  | ^^^^^^^^\n"
        f"fix: did you mean ':json'? {FORMATS}\n"
        "<template>:2:1: malformed placeholder: a name is missing here\n2 | ${} ${b|uper}\n  | ^^^\n"
        f"fix: {FIX}\n"
        "<template>:2:5: unknown filter 'uper'\n2 | ${} ${b|uper}\n  |     ^^^^^^^^^\n"
        f"fix: did you mean 'upper'? {FILTERS}"
    )


def test_a_flaw_inside_a_placeholder_that_fails_is_noted_once() -> None:
    parsed = parse("${file:${}|nope}", "workflow")
    assert [(flaw.start, flaw.what) for flaw in parsed.flaws] == [
        (0, "unknown filter 'nope'"),
        (7, "malformed placeholder: a name is missing here"),
    ]


def test_an_unclosed_placeholder_does_not_hide_the_next_one() -> None:
    assert compile_template("${a ${b}").render({"b": "B"}) == "${a B"


# ── limits ───────────────────────────────────────────────────────────────


def test_a_text_of_the_greatest_length_is_read_and_one_more_character_is_not() -> None:
    assert parse("x" * MAX_TEXT, "workflow").parts == (Text("x" * MAX_TEXT),)
    with pytest.raises(LimitError) as caught:
        parse("x" * (MAX_TEXT + 1), "workflow")
    assert str(caught.value) == (
        "a template of 1,048,577 characters; the limit is 1,048,576\n"
        "fix: put the long text into a file or a value and name it in the template"
    )


NESTS = [
    ("workflow", "${a:-", "}"),
    ("graph", "{input:a:", "}"),
    ("config", "${A:-", "}"),
    ("workflow", "${file:", "}"),
]


@pytest.mark.parametrize(("profile", "opener", "closer"), NESTS)
def test_placeholders_nest_so_deep_and_no_deeper(profile: str, opener: str, closer: str) -> None:
    parse(opener * MAX_DEPTH + "x" + closer * MAX_DEPTH, profile)
    for depth in (MAX_DEPTH + 1, 5_000):
        with pytest.raises(LimitError, match="placeholders nested more than 64 deep") as caught:
            parse(opener * depth + "x" + closer * depth, profile)
        assert caught.value.code == "nested-too-deep"


@pytest.mark.parametrize("opener", ["${", "{", "{input:", "${a || ", "$${"])
@pytest.mark.parametrize("profile", ALL)
def test_what_nests_and_is_no_placeholder_may_nest_as_it_likes(profile: str, opener: str) -> None:
    text = opener * 3_000 + "}" * 3_000
    assert "".join(part.text for part in parse(text, profile).parts if isinstance(part, Text)) in (
        text,
        text[1:],
    )


def test_a_placeholder_that_fails_outside_is_read_inside_once_per_level() -> None:
    # Read twice at every level, this would take two to the power of sixty steps.
    text = "${file:" * 60 + "x" + "|nope}" * 60
    parsed = parse(text, "workflow")
    assert parsed.parts == (Text(text),)
    assert len(parsed.flaws) == 60


def test_many_flaws_are_counted_up_to_a_limit() -> None:
    assert len(parse("${} " * 10_000, "workflow").flaws) == MAX_FLAWS
    fatal = [
        flaw for flaw in parse("${} " * 10_000 + "${a:jsn}" * 200, "workflow").flaws if flaw.fatal
    ]
    assert len(fatal) == MAX_FLAWS


def test_the_same_text_is_parsed_once() -> None:
    text = f"once ${{a}} {time.monotonic_ns()}"
    before = parse_cache_counts()
    assert parse(text, "workflow") is parse(text, "workflow")
    after = parse_cache_counts()
    assert (after["misses"] - before["misses"], after["hits"] - before["hits"]) == (1, 1)


# ── paths on their own ───────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("a", Path("a")),
        ("a.b[0]", Path("a", ("b", 0))),
        ('a["b c"].d', Path("a", ("b c", "d"))),
        ("a.-1", Path("a", (-1,))),
    ],
)
def test_a_path_can_stand_alone(text: str, path: Path) -> None:
    assert parse_path(text) == path


@pytest.mark.parametrize(
    "text", ["", ".", "a.", "a b", "1", "a[", "a[x]", "${a}", "a..b", "a:json", " a", "a "]
)
def test_what_is_no_path_is_refused(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_path(text)
    assert str(caught.value) == f"'{text}' is not a path\nfix: write name.key or name[0]"


# ── properties ───────────────────────────────────────────────────────────

FRAGMENTS = [
    *(
        "${",
        "$${",
        "{",
        "}",
        "{{",
        "}}",
        "$",
        "\\",
        "\\}",
        "a",
        "b1",
        ".",
        "[",
        "]",
        "0",
        "-1",
        "|",
        "||",
        ":",
        ":-",
        ":?",
    ),
    *(
        "'",
        '"',
        " ",
        "\n",
        "input:",
        "file:",
        "cmd:",
        "json:",
        ":from:",
        "date:",
        "upper",
        "join(",
        ")",
        "...",
        "é",
        "?",
        "*",
    ),
]
scraps = st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=2)), max_size=25).map(
    "".join
)


@given(text=scraps, profile=st.sampled_from(ALL))
@example(text="${file:\\", profile="workflow")
@example(text="${a:-\\}", profile="workflow")
def test_parsing_raises_nothing_but_our_errors(text: str, profile: str) -> None:
    try:
        parsed = parse(text, profile)
    except PlaitError:
        return
    last = 0
    for part in parsed.parts:
        if not isinstance(part, Text):
            assert last <= part.start < part.end <= len(text)
            last = part.end


@given(text=scraps)
def test_spans_of_placeholders_are_the_text_of_the_placeholders(text: str) -> None:
    for profile in ALL:
        for placeholder in placeholders(parse(text, profile).parts):
            written = text[placeholder.start : placeholder.end]
            bare = isinstance(placeholder, ContextPlaceholder) and placeholder.bare
            assert written.startswith("$" if bare else ("${", "{"))
            assert written.endswith("}") or bare


def unknown(text: str) -> bool:
    """No name is known, no default is used, nothing is escaped or refused."""
    return not any(mark in text for mark in ("$${", ":-", ":?", "'", '"', "default", "true", "null", "false", "date", "file:", "cmd:"))  # fmt: skip


@given(text=scraps.filter(unknown))
def test_a_workflow_without_known_names_comes_back_byte_for_byte(text: str) -> None:
    template = compile_template(text, "workflow")
    if not any(flaw.fatal for _, flaw in template.flaws):
        assert template.render({}) == text


@given(
    text=scraps.filter(
        lambda text: "{{" not in text and "?" not in text and ":" not in text.replace("input:", "")
    )
)
def test_a_directive_without_inputs_comes_back_byte_for_byte(text: str) -> None:
    if "|" not in text:
        assert compile_template(text, "directive").render({}) == text


@given(
    text=st.text(alphabet=st.characters(exclude_characters="${"), max_size=200),
    profile=st.sampled_from(ALL),
)
def test_text_without_openers_is_one_text(text: str, profile: str) -> None:
    assert parse(text, profile).parts == ((Text(text),) if text else ())


@given(text=st.text(max_size=60).filter(lambda text: "\\" not in text))
def test_text_can_always_be_escaped(text: str) -> None:
    balanced = text.replace("{", "").replace("}", "")
    assert compile_template("$${" + balanced + "}").render({}) == "${" + balanced + "}"
