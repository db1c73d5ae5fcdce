"""A value is never source: random templates with hostile values against an oracle that does not parse.

    python tests/fuzz/template_fuzz.py --runs 1000000 --seed 1

A template is put together from pieces, and each piece knows what must come out
of it.  So the expected output is known by construction, without reading a
template.  The values are made of every placeholder syntax there is; a single
one of them read as source changes the output.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from plait.core.errors import PlaitError
from plait.core.values import Secret
from plait.template.sinks import (
    render_env,
    render_header,
    render_json,
    render_text,
    render_url,
    render_words,
)
from plait.template.template import Template, compile_template

PROFILES: Final = ("prompt", "directive", "graph", "workflow", "config")
STAGES: Final = {
    "prompt": (0,),
    "directive": (1,),
    "graph": (1, 2),
    "workflow": (2,),
    "config": (3, 4),
}
NAMES: Final = ("a", "b", "c", "item", "A", "HOME")
UNKNOWN: Final = ("nope", "gone", "NOPE")
HOSTILE: Final = (
    *(
        "${a}",
        "${b:-x}",
        "${A}",
        "${item.k}",
        "${env.HOME}",
        "${uuid}",
        "${file:/etc/passwd}",
        "${cmd:id}",
    ),
    *("{a}", "{b}", "{{b}}", "{{{c}}}", "{input:a}", "{input:c?}", "{input:b:x}", "{{input:a}}"),
    *(
        "$a",
        "$A",
        "$HOME",
        "$${a}",
        "$$",
        "\\}",
        "\\{",
        "}",
        "{",
        "${",
        "$",
        "'",
        '"',
        "`id`",
        "$(id)",
        "\\",
    ),
    *(
        "${a",
        "a}",
        "input:a}",
        "|upper}",
        ":-",
        "||",
        "\u00e9\U0001f600",
        " ",
        "\t",
        "%2e",
        "../",
        "\ud800",
    ),
)
PLAIN: Final = (
    *(
        "text",
        "--flag=",
        " ",
        "\n",
        '{"k": 1}',
        '{"a": [1, {"b": 2}]}',
        "$1 ",
        "$(date) ",
        "{ a }",
        "{}",
        "%s",
    ),
    *(
        "a.b",
        "é😀",
        "'q'",
        '"q"',
        "<b>",
        "100%",
        "x:-y",
        "a|b",
        "{a.b}",
        "C:\\dir ",
        "# ",
        "[0]",
        "; ",
        "${x%.c}",
    ),
)
GONE: Final = object()


@dataclass(frozen=True)
class Piece:
    """The text of a template and its expected result.  `value` is GONE where the text stays as it is."""

    source: str
    value: Any = GONE
    text: str | None = None

    @property
    def plain(self) -> str:
        return self.source if self.text is None else self.text

    def shown(self, show: Callable[[Any], str]) -> str:
        return self.plain if self.value is GONE else show(self.value)


NOTHING: Final = Piece("")


@dataclass(frozen=True)
class Case:
    profile: str
    pieces: tuple[Piece, ...]
    values: Mapping[str, Any]
    env: Mapping[str, str]

    @property
    def template(self) -> str:
        return "".join(piece.source for piece in self.pieces)

    def expected(self, show: Callable[[Any], str]) -> str:
        return "".join(piece.shown(show) for piece in self.pieces)

    @property
    def value(self) -> Any:
        """The result of a typed rendering."""
        if len(self.pieces) == 1 and self.pieces[0].value is not GONE and self.profile in TYPED:
            return self.pieces[0].value
        return self.expected(masked)


TYPED: Final = ("graph", "workflow", "config")


def run(runs: int, seed: int, *, progress: Callable[[int], None] = lambda _: None) -> list[str]:
    """Return the failures, each with its template and values."""
    chance = random.Random(seed)
    failures: list[str] = []
    for count in range(runs):
        case = random_case(chance, PROFILES[count % len(PROFILES)])
        failures += check(case, CHECKS[count % len(CHECKS)])
        if count % 20_000 == 0:
            progress(count)
    return failures


# ── making a case ────────────────────────────────────────────────────────


def random_case(chance: random.Random, profile: str) -> Case:
    names = {name: random_value(chance, number) for number, name in enumerate(NAMES)}
    values = {
        **names,
        "inputs": {name: random_value(chance, 50 + n) for n, name in enumerate(NAMES)},
    }
    env = {name: hostile_text(chance, 90 + n) for n, name in enumerate(NAMES) if name.isupper()}
    pieces = random_pieces(chance, profile, values, env, depth=0)
    return Case(profile, pieces, values, env)


def random_value(chance: random.Random, mark: int) -> Any:
    match chance.randrange(12):
        case 0:
            return chance.choice([0, -1, mark, 10**30, True, False, None, 1.5, -0.0])
        case 1:
            return [hostile_text(chance, mark), mark, {"${a}": hostile_text(chance, mark)}]
        case 2:
            return {"k": hostile_text(chance, mark), "{a}": [None, True]}
        case 3:
            return Secret(hostile_text(chance, mark))
        case _:
            return hostile_text(chance, mark)


def hostile_text(chance: random.Random, mark: int) -> str:
    """Unique by its mark, and otherwise made of placeholders."""
    return "".join(chance.choice(HOSTILE) for _ in range(chance.randrange(4))) + f"<{mark}>"


def random_pieces(
    chance: random.Random,
    profile: str,
    values: Mapping[str, Any],
    env: Mapping[str, str],
    *,
    depth: int,
) -> tuple[Piece, ...]:
    count = 1 if chance.randrange(4) == 0 else chance.randrange(5)
    pieces = [random_piece(chance, profile, values, env, depth) for _ in range(count)]
    return tuple(
        piece
        for pair in zip(pieces, [*pieces[1:], NOTHING], strict=False)
        for piece in parted(*pair)
    )


def parted(piece: Piece, following: Piece) -> tuple[Piece, ...]:
    """`$name` ends where its name ends: no letter may follow it."""
    bare = piece.source[:1] == "$" and piece.source[1:].isidentifier()
    return (piece, Piece(".")) if bare and following is not NOTHING else (piece,)


def random_piece(
    chance: random.Random,
    profile: str,
    values: Mapping[str, Any],
    env: Mapping[str, str],
    depth: int,
) -> Piece:
    match chance.randrange(4):
        case 0:
            return plain_piece(chance, profile)
        case 1:
            return Piece(escape := chance.choice(ESCAPES[profile]), text=ESCAPED[escape])
        case _:
            return MAKERS[profile](chance, values, env, depth)


def plain_piece(chance: random.Random, profile: str) -> Piece:
    text = chance.choice(PLAIN)
    return Piece(text if profile in ("graph", "workflow", "config") else text.replace("${", "$ {"))


ESCAPED: Final = {
    "$${a}": "${a}", "$${a:-{b}}": "${a:-{b}}", "$${input:a}": "${input:a}", "$$ ": "$$ ",
    "{{a}}": "{a}", "{{nope}}": "{nope}", "{{input:a}}": "{input:a}", "{{input:a:{b}}}": "{input:a:{b}}",
    "{input:a}": "{input:a}", "{a}": "{a}", "$a ": "$a ", "${a}": "${a}", "${nope.x}": "${nope.x}",
}  # fmt: skip
"""Texts that are no placeholders in the profiles named below, and their results."""
ESCAPES: Final = {
    "prompt": ("{{a}}", "{{nope}}", "$a ", "$$ ", "{input:a}"),
    "directive": ("{{input:a}}", "{{input:a:{b}}}", "{a}", "$a ", "${a}"),
    "graph": ("$${a}", "$${a:-{b}}", "$$ ", "{{input:a}}", "{a}", "$a "),
    "workflow": ("$${a}", "$${a:-{b}}", "$${input:a}", "$$ ", "{input:a}", "{a}"),
    "config": ("$${a}", "{{a}}", "{{nope}}", "$a ", "$$ ", "{input:a}", "${nope.x}"),
}


def prompt_piece(
    chance: random.Random, values: Mapping[str, Any], _env: object, _depth: int
) -> Piece:
    name = chance.choice(NAMES)
    return Piece(f"{{{name}}}", values[name])


def param_piece(
    chance: random.Random, values: Mapping[str, Any], env: Mapping[str, str], depth: int
) -> Piece:
    if chance.randrange(2):
        return env_piece(chance, values, env, depth)
    name = chance.choice(NAMES + UNKNOWN)
    return Piece(f"{{{name}}}", values.get(name, GONE))


def env_piece(
    chance: random.Random, values: Mapping[str, Any], env: Mapping[str, str], depth: int
) -> Piece:
    name = chance.choice(("A", "HOME", "NOPE"))
    if depth > 2 or chance.randrange(2):
        return Piece(f"${{{name}}}", env.get(name, ""))
    source, fallback = default(chance, "config", values, env, depth)
    return Piece(f"${{{name}:-{source}}}", env.get(name, fallback))


def input_piece(profile: str) -> Callable[..., Piece]:
    def make(
        chance: random.Random, values: Mapping[str, Any], env: Mapping[str, str], depth: int
    ) -> Piece:
        key = chance.choice(NAMES + UNKNOWN)
        inputs = values["inputs"]
        if depth > 2 or chance.randrange(2):
            optional = chance.randrange(2) == 0
            return Piece(
                f"{{input:{key}{'?' * optional}}}", inputs.get(key, "" if optional else GONE)
            )
        source, fallback = default(chance, profile, values, env, depth)
        return Piece(f"{{input:{key}{chance.choice(':|')}{source}}}", inputs.get(key, fallback))

    return make


def context_piece(profile: str) -> Callable[..., Piece]:
    def make(
        chance: random.Random, values: Mapping[str, Any], env: Mapping[str, str], depth: int
    ) -> Piece:
        if profile == "graph" and chance.randrange(3) == 0:
            return input_piece("graph")(chance, values, env, depth)
        # A graph leaves ${NAME} to the environment of a later stage.
        known = (
            NAMES if profile == "workflow" else tuple(name for name in NAMES if not name.isupper())
        )
        name = chance.choice(known)
        gone = "nope"
        missing: Any = "" if profile == "graph" else GONE
        value = values[name]
        match chance.randrange(9):
            case 0:
                return Piece(f"${{{gone}}}", missing)
            case 1:
                return Piece(f"${{ {gone} || {name} }}", value)
            case 2:
                return Piece(f"${{{name}:json}}", sealed(value, json_form))
            case 3:
                return Piece(
                    f"${{{name} | upper}}", sealed(value, lambda it, show: show(it).upper())
                )
            case 4 if depth < 3:
                source, fallback = default(chance, profile, values, env, depth)
                return Piece(f"${{{gone}:-{source}}}", fallback)
            case 5 if depth < 3:
                source, _ = default(chance, profile, values, env, depth)
                return Piece(f"${{{name}:-{source}}}", value)
            case 6 if profile == "workflow" and not depth:
                return Piece(f"${name}", value)
            case 7:
                return Piece(f'${{inputs["{name}"]}}', values["inputs"][name])
            case _:
                return Piece(f"${{{name}}}", value)

    return make


MAKERS: Final[dict[str, Callable[..., Piece]]] = {
    "prompt": prompt_piece,
    "directive": input_piece("directive"),
    "graph": context_piece("graph"),
    "workflow": context_piece("workflow"),
    "config": param_piece,
}


def default(
    chance: random.Random,
    profile: str,
    values: Mapping[str, Any],
    env: Mapping[str, str],
    depth: int,
) -> tuple[str, Any]:
    """A template inside a placeholder, and its value."""
    inner = Case(profile, random_pieces(chance, profile, values, env, depth=depth + 1), values, env)
    if isinstance(inner.value, str) and any(
        isinstance(piece.value, Secret) for piece in inner.pieces
    ):
        return "d", "d"  # text made of a secret is a secret, and has its own tests
    return inner.template, inner.value


def sealed(value: Any, write: Callable[[Any, Callable[[Any], str]], str]) -> Any:
    """A text made of a value; text made of a secret is a secret."""
    if isinstance(value, Secret):  # the values made here hold a secret only on their own
        return Secret(write(value, revealed))
    return write(value, masked)


def json_form(value: Any, show: Callable[[Any], str]) -> str:
    return json.dumps(value, default=show, ensure_ascii=False, separators=(",", ":"))


def masked(value: Any) -> str:
    return "***" if isinstance(value, Secret) else form(value)


def revealed(value: Any) -> str:
    return value.reveal() if isinstance(value, Secret) else form(value)


def form(value: Any) -> str:
    """The text of a value, implemented again on purpose: the oracle must not use Plait."""
    if isinstance(value, str):
        return value
    words = {id(None): "", id(True): "true", id(False): "false"}
    return words[id(value)] if id(value) in words else json_form(value, str)


# ── checking it ──────────────────────────────────────────────────────────


def check(case: Case, checker: Callable[[Case, Template], tuple[Any, Any]]) -> list[str]:
    try:
        got, wanted = checker(case, compile_template(case.template, case.profile))
    except PlaitError as error:
        return [f"{checker.__name__}: {case} refused: {type(error).__name__}: {error}"]
    same = typed(got) == typed(wanted)
    return [] if same else [f"{checker.__name__}: {case}\n   got {got!r}\nwanted {wanted!r}"]


def typed(value: Any) -> Any:
    """True is not 1, and 1 is not 1.0."""
    if isinstance(value, list):
        return [typed(item) for item in value]
    if isinstance(value, dict):
        return {key: typed(item) for key, item in value.items()}
    return type(value).__name__, str(value) if isinstance(value, float) else value


def rendered(case: Case, template: Template) -> tuple[Any, Any]:
    return template.render(case.values, env=case.env), case.value


def filled(case: Case, template: Template) -> tuple[Any, Any]:
    """Render stage by stage, then with values that would expose a second reading."""
    for stage in STAGES[case.profile]:
        template = template.fill(case.values, stage=stage, env=case.env)
    return template.render({}, env={}), case.value


def filled_twice(case: Case, template: Template) -> tuple[Any, Any]:
    """Require that a repeated stage with the same names has nothing left to fill."""
    for stage in STAGES[case.profile] * 2:
        template = template.fill(case.values, stage=stage, env=case.env)
    return template.render(case.values, env=case.env), case.value


def in_a_tree(case: Case, template: Template) -> tuple[Any, Any]:  # noqa: ARG001 - the shape of a checker
    tree = compile_template({"${a}": [case.template, {"{a}": case.template}], "n": 1}, case.profile)
    value = case.value
    return tree.render(case.values, env=case.env), {"${a}": [value, {"{a}": value}], "n": 1}


def to_text(case: Case, template: Template) -> tuple[Any, Any]:
    return render_text(template, case.values, env=case.env), case.expected(masked)


def to_argv(case: Case, template: Template) -> tuple[Any, Any]:
    return render_words(template, case.values, env=case.env), [case.expected(revealed)]


def to_env(case: Case, template: Template) -> tuple[Any, Any]:
    return render_env(template, case.values, env=case.env), case.expected(revealed)


def to_header(case: Case, template: Template) -> tuple[Any, Any]:
    wanted = case.expected(revealed)
    if "\n" in wanted:
        return None, None
    return render_header(template, case.values, env=case.env), wanted


def to_json(case: Case, template: Template) -> tuple[Any, Any]:  # noqa: ARG001
    tree = compile_template({"k": [case.template + "."]}, case.profile)
    got = render_json(tree, case.values, env=case.env)
    return json.loads(got), {"k": [case.expected(revealed) + "."]}


def to_url(case: Case, template: Template) -> tuple[Any, Any]:  # noqa: ARG001
    if "\ud800" in case.expected(revealed):
        return None, None
    start = "https://host/path?q="
    got = render_url(
        compile_template(start + case.template, case.profile), case.values, env=case.env
    )
    return got, start + case.expected(lambda value: quote(revealed(value), safe=""))


CHECKS: Final = (
    rendered, filled, in_a_tree, filled_twice, to_text, to_argv, to_json, to_url, to_header, to_env, rendered, filled
)  # fmt: skip


def main() -> None:
    options = argparse.ArgumentParser(
        description="Hostile values in random templates, against an oracle."
    )
    options.add_argument("--runs", type=int, default=1_000_000)
    options.add_argument("--seed", type=int, default=1)
    chosen = options.parse_args()
    started = time.monotonic()
    logging.getLogger("plait.template").setLevel(
        logging.ERROR
    )  # a graph warns of every missing name

    def progress(count: int) -> None:
        print(f"\rtemplate_fuzz: {count:,} of {chosen.runs:,}", end="", file=sys.stderr, flush=True)

    failures = run(chosen.runs, chosen.seed, progress=progress)
    print(file=sys.stderr)
    for failure in failures[:5]:
        print(failure)
    seconds = time.monotonic() - started
    print(
        f"template_fuzz: {chosen.runs:,} pairs, seed {chosen.seed}, {len(failures):,} failures, {seconds:.0f} s"
    )
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
