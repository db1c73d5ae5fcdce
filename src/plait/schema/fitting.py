"""Which kind a node is of, and which values each kind allows."""

from __future__ import annotations

import re

from plait.core.documents.nodes import Mapping, Node, Scalar, Sequence
from plait.core.hints import Final
from plait.core.values import Json
from plait.schema.forms import form_of
from plait.schema.kinds import (
    Choice,
    Condition,
    Data,
    Duration,
    Each,
    Flag,
    Kind,
    Many,
    Map,
    NoEffect,
    Null,
    Number,
    OneHole,
    OneOf,
    Refused,
    Shell,
    Slash,
    Text,
    Tree,
    Whole,
    Word,
)
from plait.template import nodes
from plait.template.template import compile_template


def pick(kind: Kind, node: Node) -> Kind | None:
    """The kind that a node is held against: for a union, the part that fits; None if none does."""
    if not isinstance(kind, OneOf):
        return kind if fits(kind, node) else None
    return next((found for one in kind.kinds if (found := pick(one, node))), None)


def fits(kind: Kind, node: Node) -> bool:
    """Is the node of the kind, seen from outside?"""
    match kind:
        case Word() | Text() | Shell() | Choice():
            return isinstance(node, Scalar) and isinstance(node.value, str)
        case Slash():
            return isinstance(node, Scalar) and isinstance(node.value, str) and node.value.startswith("/")
        case OneHole():
            return isinstance(node, Scalar) and _is_one_hole(node.value)
        case Null():
            return isinstance(node, Scalar) and node.value is None
        case Flag():
            return isinstance(node, Scalar) and isinstance(node.value, bool)
        case Whole():
            return isinstance(node, Scalar) and (is_whole(node.value) or has_holes(node))
        case Number():
            return isinstance(node, Scalar) and is_number(node.value)
        case Duration():
            return isinstance(node, Scalar) and (is_number(node.value) or isinstance(node.value, str))
        case Condition():
            return isinstance(node, Mapping) or (
                isinstance(node, Scalar) and isinstance(node.value, str | bool)
            )
        case Map(form):
            marks = form_of(form).marks
            return isinstance(node, Mapping) and (
                not marks or any(isinstance(node.get(mark), Sequence) for mark in marks)
            )
        case Each():
            return isinstance(node, Mapping)
        case Many():
            return isinstance(node, Sequence)
        case OneOf(kinds):
            return any(fits(one, node) for one in kinds)
        case Tree() | Data() | NoEffect() | Refused():
            return True


def is_allowed(node: Scalar, kind: Kind) -> bool:
    """Is the value of a scalar one of those that its kind allows?"""
    match kind, node.value:
        case Word(_, pattern), str(text):
            return not pattern or re.fullmatch(pattern, text) is not None
        case Shell(), str(text):
            return bool(text.strip())
        case Choice(words), word:
            return word in words
        case ((Whole(least, most) | Number(least, most)), (int() | float()) as number):
            return least <= number and (most is None or number <= most)
        case Duration(), _:
            return has_holes(node) or seconds(node.value, zero=kind.zero) is not None
    return True


def _is_one_hole(value: Json) -> bool:
    if not isinstance(value, str) or not value.startswith("$"):
        return False
    parts = compile_template(value).leaf.program.parts
    return len(parts) == 1 and not isinstance(parts[0], nodes.Text)


def is_whole(value: Json) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def has_holes(node: Node) -> bool:
    """Is it text into which a value is put?"""
    if not (isinstance(node, Scalar) and isinstance(node.value, str)) or "$" not in node.value:
        return False
    return bool(compile_template(node.value).placeholders)


# ── durations ────────────────────────────────────────────────────────────

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
SECONDS: Final = r"[0-9]{1,12}(?:\.[0-9]{1,6})?"
DURATION: Final = rf"(?:{SECONDS}(?:ms|s|m|h|d))+"
_PART: Final = re.compile(r"([0-9.]+)(ms|s|m|h|d)")
LONGEST: Final = 366 * 86400.0


def seconds(value: Json, *, zero: bool = False) -> float | None:
    """A duration in seconds; None if it is none."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        text = value.strip()
        if re.fullmatch(SECONDS, text):
            value = float(text)
        elif re.fullmatch(DURATION, text):
            value = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
        else:
            return None
    if not isinstance(value, int | float):
        return None
    return float(value) if (0 < value <= LONGEST or (zero and value == 0)) else None
