"""All contenders, each rendering a case in the way its own manual recommends.

What a peer cannot say is given to it ready-made, in its favour: `str.format_map`
gets values whose maps know the default, OmegaConf a config whose values are
already in place.  All of them must produce the same output.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Mapping
from typing import Any

import dialects
from cases import Case
from dialects import Tree, written
from jinja2 import Environment
from measure import Contender
from omegaconf import OmegaConf

import plait

LIMIT = "f-string"
TRUSTING = "f-string, trusting"
HOT_DICT = "plait Template.render, dict"
HOT_SCOPE = "plait Template.render, Scope"
CACHED = "plait.render"
CAREFUL = "plait, not yet hot"
WARM_UP = 500
"""Renderings before the clock starts; far more than a template needs to get hot."""


def contenders(case: Case) -> list[Contender]:
    """The f-string first; then Plait; then the peers."""
    found = [
        _call(LIMIT, dialects.limit(case.tree), case.values),
        *(
            [_call(TRUSTING, dialects.limit(case.tree, trusting=True), case.values)]
            if case.has_default
            else []
        ),
        *_plait(case),
        _format_map(case),
        *([] if case.profile == "prompt" else [_string_template(case)]),
        _re_sub(case),
        _jinja(case),
        _omegaconf(case),
    ]
    _expect_equal_outputs(found)
    return found


def _expect_equal_outputs(found: list[Contender]) -> None:
    wanted = found[0].result()
    for contender in found[1:]:
        if contender.result() != wanted:
            raise AssertionError(f"{contender.name} renders something else than {found[0].name}")


def _call(name: str, function: Callable[..., Tree], values: Any) -> Contender:
    return Contender(name, "function(values)", {"function": function, "values": values})


# ── Plait ────────────────────────────────────────────────────────────────


def plait_source(case: Case) -> Tree:
    return written(case.tree, dialects.prompt if case.profile == "prompt" else dialects.dollar)


def _plait(case: Case) -> list[Contender]:
    source, scope = plait_source(case), plait.Scope(case.values)
    by_dict, by_scope, careful = (plait.compile(source, profile=case.profile) for _ in range(3))
    for _ in range(WARM_UP):
        by_dict.render(case.values)
        by_scope.render(scope)
        plait.render(source, case.values, profile=case.profile)
    by_text = {"plait": plait, "source": source, "values": case.values, "profile": case.profile}
    return [
        Contender(
            HOT_DICT, "template.render(values)", {"template": by_dict, "values": case.values}
        ),
        Contender(HOT_SCOPE, "template.render(values)", {"template": by_scope, "values": scope}),
        Contender(CACHED, "plait.render(source, values, profile=profile)", by_text),
        Contender(
            CAREFUL, "template.render_checked(values)", {"template": careful, "values": case.values}
        ),
    ]


# ── the peers ────────────────────────────────────────────────────────────


def _over(tree: Tree, render: Callable[[str], Callable[[Any], str]]) -> Callable[[Any], Tree]:
    """One function for a tree, from a function that prepares a single string."""
    if isinstance(tree, dict):
        items = {key: _over(item, render) for key, item in tree.items()}
        return lambda values: {key: item(values) for key, item in items.items()}
    if isinstance(tree, list):
        parts = [_over(item, render) for item in tree]
        return lambda values: [part(values) for part in parts]
    return render(tree)


def _format_map(case: Case) -> Contender:
    source = written(case.tree, dialects.format_field)
    return _call(
        "str.format_map", _over(source, lambda text: text.format_map), _defaulted(case.values)
    )


class _Defaulted(dict[str, Any]):
    """`str.format_map` has no defaults, so its maps know the one of the case."""

    def __missing__(self, key: str) -> str:
        return "5"


def _defaulted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _Defaulted({key: _defaulted(item) for key, item in value.items()})
    return value


class _Dotted(string.Template):
    braceidpattern = r"[a-z0-9_.]+(?::-[^}]*)?"


class _Paths(dict[str, Any]):
    """The lookup of `string.Template` for a dotted name; plain names never reach it."""

    def __missing__(self, name: str) -> Any:
        path, _, default = name.partition(":-")
        return _walked(self, path, default)


def _string_template(case: Case) -> Contender:
    source = written(case.tree, dialects.dollar)

    def render(text: str) -> Callable[[Any], str]:
        template = _Dotted(text)
        if "." not in "".join(template.get_identifiers()):
            return template.substitute
        return lambda values: template.substitute(_Paths(values))

    return _call("string.Template", _over(source, render), case.values)


_PLACEHOLDER = {
    "prompt": re.compile(r"\{([a-z0-9_]+)\}"),
    "workflow": re.compile(r"\$\{([a-z0-9_.]+)(?::-([^}]*))?\}"),
}


def _re_sub(case: Case) -> Contender:
    substitute = _PLACEHOLDER[case.profile].sub

    def render(text: str) -> Callable[[Any], str]:
        if case.nested:
            return lambda values: substitute(
                lambda found: str(_walked(values, found[1], found[2])), text
            )
        return lambda values: substitute(lambda found: str(values[found[1]]), text)

    return _call("re.sub with a callback", _over(plait_source(case), render), case.values)


def _walked(values: Any, path: str, default: str | None) -> Any:
    try:
        for key in path.split("."):
            values = values[key]
    except KeyError:
        if not default:
            raise
        return default
    return values


def _jinja(case: Case) -> Contender:
    environment = Environment(keep_trailing_newline=True)
    source = written(case.tree, dialects.jinja)
    return _call(
        "Jinja2", _over(source, lambda text: environment.from_string(text).render), case.values
    )


def _omegaconf(case: Case) -> Contender:
    config = OmegaConf.create({**case.values, "rendered": written(case.tree, dialects.omegaconf)})
    if isinstance(case.tree, str):
        return Contender("OmegaConf", "config.rendered", {"config": config})
    names = {"resolved": OmegaConf.to_container, "tree": config.rendered}
    return Contender("OmegaConf", "resolved(tree, resolve=True)", names)
