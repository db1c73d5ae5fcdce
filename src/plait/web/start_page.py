"""The page that starts a flow: a list of flows, and a form made of a flow's parameters."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence

from plait.app.flow_list import ListedFlow, find_flows
from plait.core.hints import Final
from plait.core.values import UNDEFINED, Json, Undefined
from plait.lang.parameters import Parameter
from plait.views.format import one_line
from plait.web.addresses import START, start_address
from plait.web.fields import FIELD, field_with_label, secret_field, secrets_note
from plait.web.html import Child, Markup, join, tag
from plait.web.layout import note, section

_NUMBERS: Final = {"integer": "1", "number": "any"}


def project_flows(project: str) -> dict[str, ListedFlow]:
    """By its path in the project: each flow that a person may start."""
    found: dict[str, ListedFlow] = {}
    for flow in find_flows(project):
        inside = os.path.relpath(os.path.abspath(flow.path), project)
        found[inside] = flow
    return found


def run_words(project: str, flow: str, inputs: Mapping[str, str], *, trust: bool) -> list[str]:
    """The words of the command that starts a flow, with its inputs."""
    words = ["run", os.path.join(project, flow)]
    for name, value in inputs.items():
        words += ["-i", f"{name}={value}"]
    return [*words, "--project", project, *(["--trust"] if trust else [])]


def flows_content(flows: Mapping[str, ListedFlow], projects: Mapping[str, str], key: str) -> Markup:
    others = [
        tag(
            "a",
            one_line(os.path.basename(folder)),
            href=start_address(project=one),
            aria_current="true" if one == key else None,
        )
        for one, folder in projects.items()
    ]
    rows = [_flow(inside, flow, key) for inside, flow in flows.items()]
    empty = note(
        join("there is no flow here: write one with ", tag("code", "plait new workflow hello"))
    )
    return join(
        tag("h1", "Start a flow"),
        tag("nav", others, aria_label="Projects", class_="chips") if len(others) > 1 else None,
        tag("ul", rows, class_="flows card") if rows else empty,
    )


def _flow(inside: str, flow: ListedFlow, key: str) -> Markup:
    about = flow.problem or flow.description
    name = (
        tag("span", inside)
        if flow.problem
        else tag("a", inside, href=start_address(project=key, flow=inside))
    )
    needed = [one.name for one in flow.parameters.values() if one.required]
    return tag(
        "li",
        tag("strong", name),
        tag("span", flow.kind, class_="chip"),
        tag("span", one_line(about, 200), class_="cause" if flow.problem else "dim"),
        tag("span", f"needs {', '.join(needed)}", class_="dim") if needed else None,
    )


def form_content(
    inside: str,
    flow: ListedFlow,
    key: str,
    project: str,
    *,
    given: Mapping[str, str] | None = None,
    problem: str = "",
    exit_code: int = 0,
) -> Markup:
    """The form of one flow; `problem`: what the command said when it was last sent.

    The value of a secret is never in it: neither its default nor what was given.
    """
    given = given or {}
    fields = [
        secret_field(one.name, _hints(one), required=one.required)
        if one.name in flow.secrets
        else _field(one, given.get(one.name))
        for one in flow.parameters.values()
    ]
    words = run_words(project, inside, {}, trust=False)
    import shlex

    command = shlex.join(("plait", *words[:2]))
    parts: list[Child] = [
        tag("h1", inside),
        tag("p", flow.description, class_="dim") if flow.description else None,
    ]
    if problem:
        parts.append(
            tag(
                "div",
                tag("strong", "It did not start"),
                tag("pre", problem),
                class_="failure",
                role="alert",
            )
        )
    trust: Child = None
    if exit_code == 3:
        trust = tag(
            "label",
            tag("input", type="checkbox", name="trust", value="yes", data_adds="--trust"),
            " trust this project first: its tools and scripts may run",
        )
    form = tag(
        "form",
        tag("input", type="hidden", name="project", value=key),
        tag("input", type="hidden", name="flow", value=inside),
        fields or tag("p", "This flow has no parameters.", class_="dim"),
        trust,
        tag("button", "Start", type="submit", class_="act a-resume"),
        tag(
            "code",
            command,
            class_="command",
            data_command=command,
            data_command_end=f"--project {shlex.quote(project)}",
        ),
        secrets_note(sorted(flow.secrets)) if flow.secrets else None,
        method="post",
        action=START,
        class_="start-form",
        id="start-form",
    )
    return join(parts, section("Parameters", form, id="parameters"))


def _hints(one: Parameter) -> list[str]:
    hints = [one.description] if one.description else []
    if one.type in ("array", "object"):
        hints.append("JSON")
    elif not one.required and one.default in (None, UNDEFINED):
        hints.append("optional")
    return hints


def _field(one: Parameter, given: str | None) -> Markup:
    name, id = f"{FIELD}{one.name}", f"{FIELD}{one.name}"
    default = None if isinstance(one.default, Undefined) else one.default
    value = given if given is not None else _text(default)
    hints = _hints(one)
    shared: dict[str, object] = {
        "id": id,
        "name": name,
        "required": one.required,
        "aria_describedby": f"{id}-hint" if hints else None,
        "data_input": one.name,
    }
    control: Markup
    if one.choices:
        options = _options(one.choices, value, required=one.required)
        control = tag("select", options, **shared)
    elif one.type == "boolean":
        control = tag("select", _options((True, False), value, required=one.required), **shared)
    elif one.type in ("array", "object"):
        control = tag("textarea", value, rows=4, spellcheck="false", **shared)
    elif one.type in _NUMBERS:
        control = tag("input", type="number", step=_NUMBERS[one.type], value=value, **shared)
    else:
        pattern = one.pattern if one.pattern else None
        control = tag(
            "input", type="text", value=value, data_pattern=pattern, autocomplete="off", **shared
        )
    return field_with_label(one.name, control, hints, required=one.required)


def _options(choices: Sequence[Json], value: str, *, required: bool) -> list[Markup]:
    texts = [_text(one) for one in choices]
    first = [] if required or value in texts else [tag("option", "", value="")]
    return first + [tag("option", text, value=text, selected=text == value) for text in texts]


def _text(value: Json) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
