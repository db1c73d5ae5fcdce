"""Find the texts that steps make from secrets, before any step runs.

A run must mask them from the start: a resumed run replays steps without filling their templates,
and workers fill templates on other machines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from plait.core.errors import PlaitError
from plait.core.hints import Final
from plait.core.patterns import lazy_pattern
from plait.core.values import Json
from plait.lang.analysis.scopes import TemplateField
from plait.lang.environment import secrets_in
from plait.scope import Scope
from plait.template.nodes import ContextPlaceholder, placeholders
from plait.template.template import compile_template

_VARIABLE: Final = lazy_pattern(r"(?:^|\.)env\.\w+$")
"""The path of an environment variable; a process gets its whole value."""


def derived_secrets(fields: Iterable[TemplateField], scope: Scope) -> frozenset[str]:
    """The values of variables and placeholders that contain secrets, using only the names of
    the flow.
    """
    return frozenset(text for one in fields for text in _field_secrets(one, scope))


def _field_secrets(field: TemplateField, scope: Scope) -> Iterator[str]:
    text = str(field.scalar.value)
    if "$" not in text:
        return
    if _VARIABLE.search(field.path):
        yield from secrets_in(_try_render(text, scope))
    for placeholder in placeholders(compile_template(text, "workflow").leaf.compiled.parts):
        if isinstance(placeholder, ContextPlaceholder):
            yield from secrets_in(_try_render(text[placeholder.start : placeholder.end], scope))


def _try_render(text: str, scope: Scope) -> Json:
    try:
        return compile_template(text, "workflow").render_checked(scope, strict=True, sealing=True)
    except PlaitError:
        return None  # it needs a value that only a run knows
