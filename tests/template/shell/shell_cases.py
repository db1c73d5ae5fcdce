"""Shell templates for tests: `${x}`, `${x:raw}`, `${x:opt}` with one small letter are placeholders, all else is shell."""

from __future__ import annotations

import re

from plait.core.source import Source
from plait.core.values import Json
from plait.template.shell.binding import BindingPlan, BoundScript, bind, plan
from plait.template.shell.lexer import Dialect, Piece, ValueSlot

_PLACEHOLDER = re.compile(r"\$\{[a-z](:raw|:opt)?\}")


def pieces(template: str) -> list[Piece]:
    made: list[Piece] = []
    at = 0
    for index, found in enumerate(_PLACEHOLDER.finditer(template)):
        made.append(template[at : found.start()])
        made.append(
            ValueSlot(index, *found.span(), raw=found[1] == ":raw", option=found[1] == ":opt")
        )
        at = found.end()
    return [*made, template[at:]]


def planned(template: str, dialect: Dialect = "sh") -> BindingPlan:
    return plan(pieces(template), dialect, Source("flow.yaml", template))


def bound(
    template: str, *values: Json, dialect: Dialect = "sh", trusted: bool = False
) -> BoundScript:
    return bind(planned(template, dialect), values, trusted=lambda _: trusted)
