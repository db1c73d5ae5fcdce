"""Broken templates: any text gives parts or an error of Plait, in linear time.

    python tests/fuzz/parser_fuzz.py --runs 1000000 --seed 1
    python tests/fuzz/parser_fuzz.py --runs 0 --linear      only the measurement

Each run parses one random or mutated text in every profile.  Then patterns that
open and rarely close are measured at growing sizes: the time per byte may not
grow, a mebibyte of openers takes at most a second (and a few microseconds more
for each pair of braces, which must be looked into), and memory stays below a bound.  Seconds are those of a quiet machine: a fixed
piece of work measures how much slower this one is at the moment.
"""

from __future__ import annotations

import argparse
import gc
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import Final

from plait.core.errors import LimitError, PlaitError
from plait.template import grammar
from plait.template.nodes import Text, placeholders
from plait.template.profiles import PROFILES, profile_named

KIB: Final = 1 << 10
SIZES: Final = (128 * KIB, 256 * KIB, 512 * KIB, 1024 * KIB)
MAX_GROWTH: Final = 2.5
MAX_SECONDS: Final = 1.0
SECONDS_PER_PAIR: Final = 6e-6
REFERENCE_SECONDS: Final = 0.026
"""The seconds of `reference_work` on a quiet machine of the kind that the bounds were set on."""
MAX_MEMORY: Final = 300 << 20
SLOW_RUN: Final = 1.0
"""The most seconds that a text of a few hundred characters may take."""

TEMPLATES: Final = (
    "deploy ${item.path} --to ${target:-${env.HOME}/x} ${files...} $NAME",
    '${a || b.c[0] || "x" | trim | join(", ") :- {"k": ${d}} }',
    "${file:${dir}/a.txt:-none} ${cmd:ls '${x}' | wc -l} ${date:%H:%M} ${uuid}",
    "${json:a.b[1]:from:last.output} ${a:json} ${files:*.py:lines} ${x:?needed}",
    "{input:a} {input:b?} {input:c:d {input:e|f}} {{input:g}}",
    '{"url": "${BASE:-http://h/{id}}", "n": {n}, "x": "{{n}}"}',
    "${x%.c} ${x##*/} ${x:0:3} ${#x} ${x[@]} $1 $(ls) $((1+2)) $${a} \\} \\{",
)
SCRAPS: Final = (
    *"${}|:-?.[]()'\"\\ \n\t*/#%@!,=+~^&;<>`0aZ_é",
    *(
        "${",
        "$${",
        "{{",
        "}}",
        "{input:",
        "||",
        ":-",
        ":?",
        "...",
        "file:",
        "cmd:",
        "json:",
        ":from:",
        "date:",
    ),
    *(
        "${a:-",
        "${a|",
        "${file:",
        "| upper",
        "join(",
        "\\}",
        "\\{",
        "\x00",
        "\ud800",
        "\U0001f600",
        "9" * 30,
    ),
    *(
        "${" * 70,
        "}" * 70,
        "${a:-" * 70,
        "{input:a:" * 70,
        "${a." * 30,
        "a." * 30,
        "|trim" * 30,
        ":json" * 30,
    ),
)

OPENERS: Final[dict[str, tuple[str, ...]]] = {
    # profile: the repeated text
    "workflow": (
        *(
            "${",
            "${a:-",
            "${a.",
            "${a[",
            '${a["',
            "${a|",
            "${a||",
            "${'",
            "${a:?",
            "${a:",
            "${a:json:",
            "${file:",
            "${cmd:'",
        ),
        *(
            "${json:a:from:",
            "${a|join('",
            "$${",
            "$$",
            "$a",
            "${a}",
            "${x%",
            "${}",
            "${a:bad}",
            "${file:x|bad}",
            "\\}",
        ),
    ),
    "graph": ("{input:", "{input:a:", "{{input:a:", "{", "{input:a}", "${ ", "${a.1"),
    "config": ("{{a", "{a", "{a}", "{{a}}", "${A:-", "${A}", "{{{{"),
    "prompt": ("{a}", "{{"),
    "directive": ("{input:a?}", "{{input:a}}"),
}
NESTED: Final = (
    # profile, opener, closer: as many of one as of the other
    ("workflow", "${", "}"), ("workflow", "${a || ", "}"), ("workflow", "${file:", "|bad}"), ("workflow", "${file:x", "||}"),
    ("workflow", "${a.", "}"), ("workflow", '${a["', '"]}'), ("workflow", "${'", "'}"), ("workflow", "${x%", "}"),
    ("workflow", "${date:", " | bad}"), ("workflow", "${a:-", "}"), ("workflow", "$${", "}"), ("workflow", "${a|join(", ")}"),
    ("graph", "{input:", "}"), ("graph", "{{input:a:", "}}"), ("config", "{", "}"), ("config", "{{", "}}"), ("config", "${a", "}"),
)  # fmt: skip


def run(runs: int, seed: int, *, progress: Callable[[int], None] = lambda _: None) -> Counter[str]:
    """Count the outcomes; any other exception, or a hang, ends the run."""
    chance = random.Random(seed)
    outcomes: Counter[str] = Counter()
    for count in range(runs):
        text = mutated(chance) if count % 2 else scrapped(chance)
        started = time.monotonic()
        try:
            outcomes.update(outcome(text, profile) for profile in PROFILES)
        except BaseException:
            print(f"seed {seed}: {text!r}")
            raise
        if time.monotonic() - started > SLOW_RUN:
            outcomes["SLOW"] += 1
            print(f"seed {seed}: slow: {text!r}")
        if count % 20_000 == 0:
            progress(count)
    return outcomes


def scrapped(chance: random.Random) -> str:
    return "".join(chance.choice(SCRAPS) for _ in range(chance.randrange(16)))


def mutated(chance: random.Random) -> str:
    text = chance.choice(TEMPLATES)
    for _ in range(chance.randint(1, 6)):
        at = chance.randint(0, len(text))
        match chance.randrange(4):
            case 0:
                text = text[:at] + chance.choice(SCRAPS) + text[at:]
            case 1:
                text = text[:at] + text[at + chance.randint(1, 6) :]
            case 2:
                text = text[:at] + chance.choice(SCRAPS) + text[at + 1 :]
            case _:
                other = chance.choice(TEMPLATES)
                start = chance.randint(0, len(other))
                text = text[:at] + other[start : start + chance.randint(1, 30)] + text[at:]
    return text


def outcome(text: str, profile: str) -> str:
    try:
        parsed = grammar._parse(text, profile)
    except PlaitError as error:
        return type(error).__name__
    end = 0
    for part in parsed.parts:
        if not isinstance(part, Text):
            assert end <= part.start < part.end <= len(text), part
            end = part.end
    for flaw in parsed.flaws:
        assert 0 <= flaw.start < flaw.end <= len(text), flaw
    for placeholder in placeholders(parsed.parts):
        assert text[placeholder.start] in "${", placeholder
    return "parts" if end else "text"


# ── linear ───────────────────────────────────────────────────────────────


def measure(most_seconds: float) -> list[str]:
    """The patterns that break a bound."""
    broken: list[str] = []
    slowest = 0.0
    for name, profile, make in patterns():
        before = reference_work()
        measured = [least_seconds(make(size), profile) for size in SIZES]
        slowness = max(1.0, max(before, reference_work()) / REFERENCE_SECONDS)
        seconds = [taken / slowness for taken, _ in measured]
        slowest = max(slowest, seconds[-1])
        allowed = most_seconds + SECONDS_PER_PAIR * measured[-1][1]
        broken += bounds_broken(f"{name!r} in {profile}", seconds, allowed)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB
    print(
        f"parser_fuzz: {len(patterns())} patterns, slowest mebibyte {slowest:.2f} s, memory {memory >> 20} MiB"
    )
    return broken if memory <= MAX_MEMORY else [*broken, f"memory: {memory >> 20} MiB"]


def patterns() -> list[tuple[str, str, Callable[[int], str]]]:
    flat = [
        (opener, profile, repeated(opener, ""))
        for profile, openers in OPENERS.items()
        for opener in openers
    ]
    nested = [
        (f"{opener} … {closer}", profile, repeated(opener, closer))
        for profile, opener, closer in NESTED
    ]
    return [*flat, *nested]


def repeated(opener: str, closer: str) -> Callable[[int], str]:
    def make(size: int) -> str:
        count = size // len(opener + closer)
        return opener * count + closer * count

    return make


def bounds_broken(name: str, seconds: list[float], most_seconds: float) -> list[str]:
    per_byte = [max(taken, 0.001) / size for taken, size in zip(seconds, SIZES, strict=True)]
    growth = max(after / before for before, after in pairwise(per_byte))
    broken = []
    if growth > MAX_GROWTH:
        broken.append(f"{name}: {growth:.1f} times slower per byte at twice the size")
    if seconds[-1] > most_seconds:
        broken.append(f"{name}: {seconds[-1]:.2f} s for a mebibyte")
    return broken


def reference_work() -> float:
    """Measure a fixed amount of work that resembles the parser's."""
    best = float("inf")
    text = "${" * 50_000
    for _ in range(5):
        started = time.process_time()
        kept: list[str] = []
        at = 0
        while (at := text.find("$", at)) >= 0:
            if text.startswith("${", at) and not text.startswith("$$", at):
                kept.append(text[at : at + 2])
            at += 1
        "".join(kept)
        best = min(best, time.process_time() - started)
    return best


def least_seconds(text: str, profile: str) -> tuple[float, int]:
    """The least of a few measurements, and the number of placeholders or pairs of braces."""
    best = float("inf")
    found = 0
    rules = profile_named(profile)
    for _ in range(4):
        gc.collect()
        started = time.process_time()
        with suppress(LimitError):
            parts = grammar._Scanner(text, rules).template(0, len(text), 0)
            best = min(best, time.process_time() - started)
            found = max(sum(not isinstance(part, Text) for part in parts), text.count("}"))
        best = min(best, time.process_time() - started)
        if best * SIZES[-1] / len(text) < MAX_SECONDS / 2:
            break
    return best, found


def main() -> None:
    options = argparse.ArgumentParser(
        description="Break templates; measure that parsing is linear."
    )
    options.add_argument("--runs", type=int, default=1_000_000)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument(
        "--linear", action=argparse.BooleanOptionalAction, default=True, help="measure times too"
    )
    options.add_argument(
        "--seconds", type=float, default=MAX_SECONDS, help="what a mebibyte may take here"
    )
    chosen = options.parse_args()

    def progress(count: int) -> None:
        print(f"\rparser_fuzz: {count:,} of {chosen.runs:,}", end="", file=sys.stderr, flush=True)

    broken = measure(chosen.seconds) if chosen.linear else []
    for line in broken:
        print(f"parser_fuzz: bound broken: {line}")
    outcomes = run(chosen.runs, chosen.seed, progress=progress)
    print(file=sys.stderr)
    shown = ", ".join(f"{count:,} {name}" for name, count in sorted(outcomes.items()))
    print(
        f"parser_fuzz: {chosen.runs:,} texts, seed {chosen.seed}: {shown}; {len(broken)} bounds broken"
    )
    sys.exit(1 if broken or outcomes["SLOW"] else 0)


if __name__ == "__main__":
    main()
