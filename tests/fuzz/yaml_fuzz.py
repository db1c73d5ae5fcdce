"""Broken documents: any text gives a node or an error of Plait.

    python tests/fuzz/yaml_fuzz.py --runs 100000 --seed 1

Each run mutates one or two of the documents below and reads the result with
both parsers of YAML, and as JSON.  Where a node comes out, every character of
every string must be found at the place in the file that its source names.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Iterator

from plait.core.documents import Mapping, Node, Scalar, Sequence, parse, parse_json
from plait.core.errors import DocumentError, LimitError

DOCUMENTS = [
    'name: fix\nsetup:\n  - shell: "ruff check ${item.path}"\n    timeout: 30\n  - agent: |\n      Read\n        this.\n\nmap:\n  items: [a, "b", \'c\']\n',
    "base: &base {a: 1, b: [x, y]}\nother:\n  <<: *base\n  b: ~\nlist: [*base, *base]\n",
    "a: >-\n  folded text\n  goes on\n\n    more indented\n  end\nb: |2+\n    kept\n\n\nc: plain\n  over\n\n  lines\n",
    "\"q\\u0041\": 'it''s\n  folded'\n? key\n: \"va\\n \\\n   joined\"\n",
    "%YAML 1.2\n---\n# comment\n404: !!str 12\non: [0o14, 0x1F, 1e3, -.5, true, null, 2020-01-01]\n...\n",
    '{"a": [1, 2.5, {"b": null}], "c": "\\u00e9", "d": {}}',
    "\ufeffa: 1\r\nb: |\r\n  x\r\n  y\r\n",
]
PIECES = [
    *"[]{}:,-?*&!|>%@`'\"#\\ \t\n\r~<=.",
    *[
        "\n  ",
        "\n- ",
        ": ",
        "- ",
        "? ",
        "<<: ",
        "*a",
        "&a ",
        "!!int ",
        "!!binary ",
        "---\n",
        "...\n",
        "\r\n",
    ],
    *[
        "\x00",
        "\x85",
        "\u2028",
        "\ufeff",
        "\ud800",
        "é",
        "😀",
        "\\x41",
        "\\ud83d\\ude00",
        "\\ud800",
        "\\\n",
    ],
    *[".inf", "1e999", "NaN"],
    *[
        "[" * 70,
        "- " * 70,
        "{a: " * 70,
        "9" * 4000,
        "a: 1\na: 2\n",
        "\t",
        "|2-\n",
        ">+\n",
        "''",
        '""',
    ],
]


def run(runs: int, seed: int) -> Counter[str]:
    """Count the outcomes; any other exception, or a misplaced character, ends the run."""
    chance = random.Random(seed)
    outcomes: Counter[str] = Counter()
    for _ in range(runs):
        text = mutated(chance)
        try:
            for pure in (False, True):
                outcomes[outcome(text, pure=pure)] += 1
            outcomes[json_outcome(text)] += 1
        except BaseException:
            print(f"seed {seed}: {text!r}")
            raise
    return outcomes


def mutated(chance: random.Random) -> str:
    text = chance.choice(DOCUMENTS)
    for _ in range(chance.randint(1, 6)):
        at = chance.randint(0, len(text))
        match chance.randrange(4):
            case 0:
                text = text[:at] + chance.choice(PIECES) + text[at:]
            case 1:
                text = text[:at] + text[at + chance.randint(1, 8) :]
            case 2:
                text = text[:at] + chance.choice(PIECES) + text[at + 1 :]
            case _:
                other = chance.choice(DOCUMENTS)
                start = chance.randint(0, len(other))
                text = text[:at] + other[start : start + chance.randint(1, 40)] + text[at:]
    return text


def outcome(text: str, *, pure: bool) -> str:
    try:
        node = parse(text, "fuzz.yaml", pure=pure)
    except (DocumentError, LimitError) as error:
        return f"yaml {placed(error)}"
    misplaced = list(misplaced_characters(node))
    assert not misplaced, misplaced
    return "yaml node"


def json_outcome(text: str) -> str:
    try:
        parse_json(text, "fuzz.json")
    except (DocumentError, LimitError) as error:
        return f"json {placed(error)}"
    return "json data"


def placed(error: DocumentError | LimitError) -> str:
    """The name of an error that has a place."""
    assert all(str(problem).startswith("fuzz.") for problem in error.problems), error
    return type(error).__name__


def misplaced_characters(node: Node) -> Iterator[tuple[str, int]]:
    """Characters whose place in the file has another character, or is not after the previous one."""
    for scalar in strings(node):
        source, text, last = scalar.source(), scalar.span.source.text, -1
        for offset, character in enumerate(source.text):
            place = source.outer_span(offset, offset + 1).start
            there = text[place : place + 1]
            folded = character in " \n" and there in ("\r", "\n")
            escaped = scalar.style == '"' and there == "\\"
            if place <= last or not (there == character or folded or escaped):
                yield source.text, offset
            last = place


def strings(node: Node) -> Iterator[Scalar]:
    match node:
        case Scalar(str()):
            yield node
        case Sequence(items):
            for item in items:
                yield from strings(item)
        case Mapping(entries):
            for key, value in entries:
                yield from strings(key)
                yield from strings(value)


def main() -> None:
    options = argparse.ArgumentParser(
        description="Mutate documents; only nodes and our errors may come out."
    )
    options.add_argument("--runs", type=int, default=20_000)
    options.add_argument("--seed", type=int, default=1)
    chosen = options.parse_args()
    outcomes = run(chosen.runs, chosen.seed)
    shown = ", ".join(f"{count:,} {name}" for name, count in sorted(outcomes.items()))
    print(f"yaml_fuzz: {chosen.runs:,} documents, seed {chosen.seed}: {shown}")


if __name__ == "__main__":
    main()
