"""Two small public helpers of the seed documents: prompts, and a value quoted for show."""

from __future__ import annotations

from collections.abc import Mapping

from plait.core.errors import InputError
from plait.core.values import Json, text
from plait.template.template import compile_template


def resolve(template: str | None, inputs: Mapping[str, Json] | None) -> str | None:
    """`{name}` is replaced, `{{name}}` is a literal `{name}`; null and blank text pass as they are."""
    if template is None:
        return None
    if not isinstance(template, str):
        raise InputError(
            f"a prompt is text, not {type(template).__name__}", fix="pass a string or None", code="wrong-type"
        )
    if not template.strip():
        return template
    import logging  # slow to import, and nothing else of the engine needs it

    log = logging.getLogger("plait.template")
    values = {} if inputs is None else inputs
    if not isinstance(values, Mapping):
        raise InputError("inputs are a map of names", fix='pass {"name": "value"}', code="wrong-type")
    compiled = compile_template(template, "prompt")
    log.debug("Resolving template (%d chars) with %d variables", len(template), len(values))
    resolved: str = compiled.render(values)
    log.debug("Resolved %d variables in template", len(compiled.placeholders))
    return resolved


def shown_shell_value(value: Json) -> str:
    """A value as one shell word, quoted where it must be: to show a command to a person.

    This is not how Plait passes values to a shell: see `shell`.
    """
    from shlex import quote

    return quote(text(value))
