"""How fast the template engine is: hot, for the first time, and on long texts; and YAML."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import contenders
import dialects
import yaml
from cases import COMMAND, Case, cases
from contenders import CACHED, CAREFUL, HOT_DICT, HOT_SCOPE, LIMIT, TRUSTING
from dialects import written
from jinja2 import Environment
from measure import Times, race, race_once_each
from tables import Bar, Plan, Row, Table, compared, times_as

import plait
from plait.core.documents import parse as parse_document
from plait.template.grammar import parse as parse_template

HOT_BAR, SMALL_BAR = Bar(1.5), Bar(1.25)
"""Times the f-string; the second one for the small templates of T1."""
FIRST_BAR = Bar(0.1)
LINEAR_BAR = Bar(2)
SIZES = tuple(1 << power for power in range(16, 21))
"""64 KiB to 1 MiB, the longest allowed template."""


# ── hot ──────────────────────────────────────────────────────────────────


def hot_tables(*, rounds: int) -> Iterator[Plan]:
    for case in cases():
        yield Plan(f"{case.key}: {case.title}", partial(_hot_table, case, rounds))


def _hot_table(case: Case, rounds: int, title: str) -> Table:
    times = race(contenders.contenders(case), rounds=rounds)
    bar = SMALL_BAR if case.key.startswith("T1") else HOT_BAR
    bars = {HOT_DICT: bar, HOT_SCOPE: bar}
    table = compared(title, _hot_meaning(case), times, to=LIMIT, bars=bars)
    ours = {LIMIT, TRUSTING, HOT_DICT, HOT_SCOPE, CACHED, CAREFUL}
    best_peer = min(seen.least for name, seen in times.items() if name not in ours)
    slower = max(times[HOT_DICT].least, times[HOT_SCOPE].least)
    ahead = Row(
        "ahead of every peer", ("", times_as(slower / best_peer), ""), "< 1", slower < best_peer
    )
    return Table(
        table.title, table.meaning, table.columns, (*table.rows, *_beside_trusting(times), ahead)
    )


def _beside_trusting(times: dict[str, Times]) -> list[Row]:
    """The same results beside the f-string that does less; no bar, but nobody should have to
    divide.
    """
    if TRUSTING not in times:
        return []
    ratios = {name: times[name].least / times[TRUSTING].least for name in (HOT_DICT, HOT_SCOPE)}
    return [
        Row(f"{name} ÷ trusting", ("", times_as(ratio), ""), "") for name, ratio in ratios.items()
    ]


def _hot_meaning(case: Case) -> str:
    if case.key.startswith("T1"):
        return f"`{written(COMMAND, dialects.dollar)}`"
    strings, placeholders = len(dialects.strings(case.tree)), dialects.placeholder_count(case.tree)
    return f"{strings} string(s), {placeholders} placeholders."


# ── the first time ───────────────────────────────────────────────────────


def first_tables(*, rounds: int) -> Iterator[Plan]:
    for case in (case for case in cases() if case.key in ("T1 int", "T2 workflow")):
        yield Plan(f"First rendering, {case.key}", partial(_first_table, case, rounds))


def _first_table(case: Case, rounds: int, title: str) -> Table:
    """Use a new text each time, so that no cache can help."""
    environment = Environment(keep_trailing_newline=True)
    ours, theirs = contenders.plait_source(case), written(case.tree, dialects.jinja)
    times = race_once_each(
        {
            "Jinja2 from_string, render": _first_by_jinja(environment, theirs, case.values),
            "plait.compile, render": _first_by_compile(ours, case.values),
            "plait.render": _first_by_render(ours, case.values),
        },
        rounds=rounds,
    )
    return compared(
        title,
        "A text never seen before: parse, compile, render. The bar: ten times faster than Jinja2.",
        times,
        to="Jinja2 from_string, render",
        bars={"plait.compile, render": FIRST_BAR, "plait.render": FIRST_BAR},
    )


def _first_by_jinja(
    environment: Environment, text: str, values: dict[str, Any]
) -> Callable[[int], Any]:
    return lambda number: environment.from_string(f"{text} j{number}").render(values)


def _first_by_compile(text: str, values: dict[str, Any]) -> Callable[[int], Any]:
    return lambda number: plait.compile(f"{text} c{number}").render(values)


def _first_by_render(text: str, values: dict[str, Any]) -> Callable[[int], Any]:
    return lambda number: plait.render(f"{text} r{number}", values)


# ── long texts ───────────────────────────────────────────────────────────

REPEATED = {
    "placeholders `${name.key} `": "${name.key} ",
    "defaults `${a:-${b:-c}} `": "${a:-${b:-c}} ",
    "openers `${`": "${",
}


def linearity_table(*, rounds: int, sizes: tuple[int, ...]) -> Plan:
    return Plan("Parsing long texts", partial(_linearity_table, rounds, sizes))


def _linearity_table(rounds: int, sizes: tuple[int, ...], title: str) -> Table:
    return Table(
        title,
        "Nanoseconds per character. The bar: the longest text costs at most twice as much per "
        "character "
        "as the shortest, also when it is nothing but openers.",
        ("", *(f"{size >> 10} KiB" for size in sizes), "last ÷ first"),
        tuple(_linear_row(name, unit, rounds, sizes) for name, unit in REPEATED.items()),
    )


def _linear_row(name: str, unit: str, rounds: int, sizes: tuple[int, ...]) -> Row:
    times = race_once_each({str(size): _parse_of_size(unit, size) for size in sizes}, rounds=rounds)
    per_character = [times[str(size)].least / size for size in sizes]
    growth = per_character[-1] / per_character[0]
    cells = (*(f"{each * 1e9:.0f}" for each in per_character), times_as(growth))
    return Row(name, cells, str(LINEAR_BAR), growth <= LINEAR_BAR.most)


def _parse_of_size(unit: str, size: int) -> Callable[[int], Any]:
    body = (unit * (size // len(unit)))[: size - 8]
    # The number makes the text new to every cache.
    return lambda number: parse_template(f"{number:08}{body}", "workflow")


# ── YAML ─────────────────────────────────────────────────────────────────


def yaml_table(*, rounds: int) -> Plan:
    text = _flow_of(1_000_000)
    return Plan(f"A YAML file of {len(text) / 1e6:.1f} MB", partial(_yaml_table, text, rounds))


def _yaml_table(text: str, rounds: int, title: str) -> Table:
    times = race_once_each(
        {
            "yaml.CSafeLoader": lambda _: yaml.load(text, yaml.CSafeLoader),
            "plait.core.documents.parse": lambda number: parse_document(
                f"{text}# {number}\n", "flow.yaml"
            ),
        },
        rounds=rounds,
    )
    return compared(
        title,
        "Plait keeps the place of every scalar, refuses duplicate keys and counts what aliases "
        "would build; "
        "the loader it is compared with builds plain data. No bar.",
        times,
        to="yaml.CSafeLoader",
        bars={},
    )


def _flow_of(size: int) -> str:
    lines = ["steps:\n"]
    length = 0
    for number in range(size):
        step = (
            f"  - name: step-{number}\n"
            f'    shell: "grep -n ${{item.pattern}} ${{item.path}} | head -{number}"\n'
            f"    timeout: {number % 60}\n"
            f"    retry: {{attempts: 3, delay: 1.5}}\n"
            f"    when: ${{step.ok}}\n"
        )
        lines.append(step)
        length += len(step)
        if length >= size:
            break
    return "".join(lines)
