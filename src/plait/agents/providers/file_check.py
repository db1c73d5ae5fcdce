"""The problems of one provider file, without the files that it extends.

A request never decides the host of a server, and a file never contains a key.
"""

from __future__ import annotations

from collections.abc import Iterator

from plait.core.documents.nodes import Mapping, Node, Scalar
from plait.core.errors import PlaitError, Problem
from plait.core.values import MASK
from plait.schema import PROVIDER, Fields, to_template, validate
from plait.schema.fields import valid_fields
from plait.scope import Scope
from plait.tools.invocation import display_header


def file_problems(node: Node) -> list[Problem]:
    """All problems, sorted by place."""
    found = validate(node, PROVIDER)
    if isinstance(node, Mapping):
        fields = Fields("provider", valid_fields(node, "provider"), Scope())
        found += list(_template_problems(fields)) or list(_own_problems(fields))
    return sorted(found, key=lambda problem: problem.place)


def _template_problems(fields: Fields) -> Iterator[Problem]:
    texts = (fields.get(name) for name in ("base_url", "path", "body", "default_model", "file"))
    for value in (*texts, *(value for _, value in fields.entries("headers"))):
        try:
            if value is not None:
                to_template(value, "config")
        except PlaitError as error:
            yield from error.problems


def _own_problems(fields: Fields) -> Iterator[Problem]:
    yield from _check_placeholders(
        fields, "base_url", known=(), why="the host of a server is never part of a question"
    )
    yield from _check_placeholders(
        fields, "path", known=("model",), why="only the model is known here"
    )
    path = fields.get("path")
    if isinstance(path, Scalar) and not str(path.value).startswith("/"):
        yield Problem(
            "'path' begins with '/'", path.span, "put the host into base_url", code="wrong-type"
        )
    yield from _check_placeholders(fields, "file", known=(), why="a file is not part of a question")
    yield from _check_placeholders(
        fields, "default_model", known=(), why="it is used where the question names no model"
    )
    for name, value in fields.entries("headers"):
        template = to_template(value, "config")
        if any(placeholder.kind == "param" for placeholder in template.placeholders):
            yield _no_part(value, "headers hold no part of a question")
        if not template.placeholders and display_header(name, "") == MASK:
            yield Problem(
                f"the header '{name}' looks like a key, and a key never stands in a file",
                value.span,
                "put it into a variable, and name that: auth: {type: header, header: …, env: NAME}",
                code="key-in-file",
            )


def _check_placeholders(
    fields: Fields, field: str, *, known: tuple[str, ...], why: str
) -> Iterator[Problem]:
    node = fields.get(field)
    if node is None:
        return
    placeholders = to_template(node, "config").placeholders
    if any(
        placeholder.kind == "param" and placeholder not in known for placeholder in placeholders
    ):
        yield _no_part(node, why)


def _no_part(node: Node, why: str) -> Problem:
    return Problem(
        f"'{{name}}' cannot stand here: {why}", node.span, "write ${NAME}", code="misplaced-name"
    )
