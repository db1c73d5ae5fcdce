"""Fields of forms.  What is typed into a field of a secret is sent and never comes back."""

from __future__ import annotations

import json
from collections.abc import Sequence

from plait.core.hints import Final
from plait.web.html import Markup, tag

FIELD: Final = "input-"
"""Begins the name of a field for an input."""


def field_with_label(name: str, control: Markup, hints: Sequence[str], *, required: bool) -> Markup:
    id = f"{FIELD}{name}"
    return tag(
        "div",
        tag("label", name, tag("span", " needed", class_="dim") if required else None, for_=id),
        control,
        tag("p", ". ".join(hints), id=f"{id}-hint", class_="dim") if hints else None,
        class_="field",
    )


def secret_field(name: str, hints: Sequence[str] = (), *, required: bool) -> Markup:
    """A field whose value is sent and never comes back."""
    id = f"{FIELD}{name}"
    control = tag(
        "input",
        type="password",
        id=id,
        name=id,
        required=required,
        autocomplete="off",
        aria_describedby=f"{id}-hint",
        data_secret=name,
    )
    return field_with_label(
        name, control, [*hints, "a secret: it is not shown again"], required=required
    )


def secrets_note(names: Sequence[str]) -> Markup:
    """How the command beside a form gets its secrets."""
    example = json.dumps(dict.fromkeys(names, "…"), ensure_ascii=False)
    words = (tag("code", "-i @-"), " reads secrets from standard input: ", tag("code", example))
    return tag("p", words, class_="dim")
