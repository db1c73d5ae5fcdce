"""What the steps of a flow make of its secrets, as far as that can be known before any of them
runs.

Whatever a run masks, it has to mask from its beginning: a resumed run does not make again what
steps have made that are remembered, and other machines make it for themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from plait.core.errors import PlaitError
from plait.core.hints import Final
from plait.core.values import Json
from plait.lang.analysis.scopes import TemplateField
from plait.lang.environment import secrets_in
from plait.scope import Scope
from plait.template.nodes import ContextPlaceholder, placeholders
from plait.template.template import compile_template

_VARIABLE: Final = re.compile(r"(?:^|\.)env\.\w+$")
"""Where a variable of a step or a phase is said: a process has all of it."""


def derived_secrets(fields: Iterable[TemplateField], scope: Scope) -> frozenset[str]:
    """The texts of variables and holes that have secrets in them, given the names of the flow
    alone.
    """
    return frozenset(text for one in fields for text in _field_secrets(one, scope))


def _field_secrets(field: TemplateField, scope: Scope) -> Iterator[str]:
    text = str(field.scalar.value)
    if "$" not in text:
        return
    if _VARIABLE.search(field.path):
        yield from secrets_in(_try_render(text, scope))
    for placeholder in placeholders(compile_template(text, "workflow").leaf.program.parts):
        if isinstance(placeholder, ContextPlaceholder):
            yield from secrets_in(_try_render(text[placeholder.start : placeholder.end], scope))


def _try_render(text: str, scope: Scope) -> Json:
    try:
        return compile_template(text, "workflow").render_checked(scope, strict=True, sealing=True)
    except PlaitError:
        return None  # it needs what only a run knows
