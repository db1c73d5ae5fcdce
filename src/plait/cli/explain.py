"""`plait explain`: where every value of a template comes from, and what it becomes."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence

from plait.cli.values import add_values, parse_values, read_template_text
from plait.core.errors import InputError, closest_name
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.source import Source
from plait.views.terminal import paint_for, width, write_json

if TYPE_CHECKING:
    from plait.cli.arguments import Parser
    from plait.lang.analysis.explain import Explanation
    from plait.lang.analysis.scopes import TemplateField
    from plait.scope import Scope

EXAMPLES: Final = (
    """plait explain 'Hello ${name:-you}' -i name=world""",
    "plait explain flow.yaml 'map[0]'",
)


def configure(parser: Parser) -> None:
    parser.add_argument(
        "text", metavar="TEXT", help="a template, - for standard input, or a YAML file"
    )
    parser.add_argument(
        "path", metavar="PATH", nargs="?", help="a place in the file, for example map[0]"
    )
    parser.add_argument(
        "--profile", metavar="P", help="workflow (default), graph, config, prompt or directive"
    )
    add_values(parser)
    parser.add_argument(
        "--shell", action="store_true", help="TEXT is shell text: show how values are bound"
    )
    parser.add_argument("--json", action="store_true", help="the same for programs")


def run(options: argparse.Namespace) -> int:
    from plait.scope import Scope
    from plait.views.explanation import explanation_json, render_explanation

    scope = Scope(parse_values(options))
    explained = list(_explanations(options, scope))
    if options.json:
        write_json([explanation_json(explanation) for explanation in explained])
        return 0
    paint, columns = paint_for(sys.stdout), width(sys.stdout)
    for number, explanation in enumerate(explained):
        if number:
            print()
        for line in render_explanation(explanation, paint, columns, headed=len(explained) > 1):
            print(line)
    return 0


def _explanations(options: argparse.Namespace, scope: Scope) -> Iterator[Explanation]:
    from plait.lang.analysis.explain import TextField, explain
    from plait.lang.analysis.names import BuiltinName
    from plait.template.profiles import profile_named

    if _names_a_file(options.text):
        yield from _file(options.text, options.path, options.profile, scope)
        return
    if options.path is not None:
        raise InputError(
            "there is no such file",
            options.text[:200],
            "PATH is a place in a YAML file",
            code="no-file",
        )
    profile = profile_named(options.profile or "workflow").name
    template = read_template_text(options.text)
    known = {name: BuiltinName(name, (), "given") for name in scope.names}
    field = TextField(template, profile, known, shell=options.shell)
    yield explain(field, Source("<template>", template), scope)


def _names_a_file(text: str) -> bool:
    from plait.lang.flow_text import MARKDOWN

    if "\0" in text or "\n" in text:
        return False
    return os.path.exists(text) or (text.endswith((".yaml", ".yml", *MARKDOWN)) and " " not in text)


# ── files ────────────────────────────────────────────────────────────────


def _file(
    path: str, wanted: str | None, profile: str | None, scope: Scope
) -> Iterator[Explanation]:
    from plait.lang.analysis.explain_file import (
        explain_fields,
        is_at,
        read_document,
        template_fields,
    )

    profile, fields = template_fields(read_document(path, profile), path, profile, scope)
    chosen = [field for field in fields if wanted is None or is_at(field, wanted)]
    if not chosen:
        raise _nothing_there(path, wanted, fields)
    for explanation in explain_fields(chosen, profile, scope, lambda _: True):
        if wanted is not None or explanation.rows or explanation.problems:
            yield explanation


def _nothing_there(path: str, wanted: str | None, fields: Sequence[TemplateField]) -> InputError:
    from plait.lang.analysis.explain_file import short_path

    if wanted is None:
        return InputError(
            "there is no template in this file", path, "see plait check", code="no-template"
        )
    known = [short_path(field) for field in fields]
    guess = closest_name(wanted, known)
    fix = f"did you mean '{guess}'?" if guess else "without PATH, all templates are shown"
    return InputError(f"there is no template at '{wanted[:60]}'", path, fix, code="no-template")
