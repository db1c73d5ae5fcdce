"""Explanations of the templates in a flow file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from plait.core.errors import InputError
from plait.core.hints import TYPE_CHECKING
from plait.lang.analysis.explain import Explanation, TextField, explain
from plait.lang.analysis.names import detect_profile
from plait.lang.analysis.scopes import STEP_LISTS, TemplateField, find_templates
from plait.lang.flow_text import MARKDOWN, FlowText
from plait.template.profiles import profile_named

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plait.core.documents.nodes import Node
    from plait.scope import Scope


def read_document(path: str, profile: str | None = None) -> Node:
    """The document of a flow file; of a directive its head and its body.

    Without a profile, a file that another system reads is refused.
    """
    from plait.lang.directive.split import split_directive

    source = FlowText.read(path)
    if path.endswith(MARKDOWN):
        return split_directive(source.text, path).as_document()
    if profile is None:
        from plait.lang.languages import require_own_file  # that module imports this package

        require_own_file(source)
    return source.document


def template_fields(
    document: Node, path: str, profile: str | None, scope: Scope
) -> tuple[str, Sequence[TemplateField]]:
    """The profile of a file, and its templates; `profile`: use this one."""
    named = profile or ("directive" if path.endswith(MARKDOWN) else None)
    profile = profile_named(named).name if named else detect_profile(document)
    if profile is None:
        what = "this file has none of the shapes that Plait knows"
        raise InputError(what, path, "say what it is: --profile workflow", code="no-profile")
    return profile, find_templates(document, profile, names=scope.names).fields


def explain_fields(
    fields: Sequence[TemplateField],
    profile: str,
    scope: Scope,
    is_chosen: Callable[[TemplateField], bool],
) -> Iterator[Explanation]:
    """An explanation of each chosen template."""
    for field in fields:
        if is_chosen(field):
            label = re.split(r"[.\[]", re.sub(r"(\[\d+\])+$", "", field.path))[-1]
            place = f"{field.path} ({field.scalar.span})"
            known = TextField(
                str(field.scalar.value),
                profile,
                field.known,
                field.shell,
                field.phase,
                label,
                place,
            )
            yield explain(known, field.scalar.source(), scope)


def short_path(field: TemplateField) -> str:
    """The path in its short form: `map[0]` for `map.agent_template[0]`."""
    return re.sub(rf"\.({'|'.join(STEP_LISTS)})(?=\[)", "", field.path)


def is_at(field: TemplateField, wanted: str) -> bool:
    """Is it the template at this place of a file, or inside that place?"""
    for path in (field.path, short_path(field)):
        if path == wanted or (path.startswith(wanted) and path[len(wanted)] in ".["):
            return True
    return False
