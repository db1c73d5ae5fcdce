"""Check the hosts of `http` steps before a run.

The author decides scheme and host of a request: they are written in the URL or in the head of the
flow. Any other value can choose only among the hosts that the step allows.
"""

from __future__ import annotations

from collections.abc import Iterator

from plait.core import documents
from plait.core.errors import PlaitError, Problem
from plait.core.hints import Final
from plait.core.patterns import lazy_pattern
from plait.core.source import Span
from plait.lang.analysis.declarations import ANY_NAME
from plait.lang.analysis.scopes import KnownNames, TemplateFields
from plait.program.actions.http import ANY_HOST, CREDENTIALS, origin_roots
from plait.template.nodes import Text
from plait.template.template import Leaf, compile_template

OF_THE_HEAD: Final = ("declared", "given", "a variable of an env file")
"""Descriptions of names from the head, a caller or the user."""
_END_OF_HOST: Final = lazy_pattern(r"[/?#]")


def check_request_hosts(reading: TemplateFields) -> Iterator[Problem]:
    """Problems with the hosts of `http` steps."""
    known = {id(field.scalar): field.known for field in reading.fields}
    for steps in reading.lists:
        for step in steps:
            request = step.get("http") if isinstance(step, documents.Mapping) else None
            url = request.get("url") if isinstance(request, documents.Mapping) else request
            if (
                isinstance(url, documents.Scalar)
                and isinstance(url.value, str)
                and id(url) in known
            ):
                hosts = _hosts(request)
                yield from _of_url(url, known[id(url)], allowed=bool(hosts))
                if ANY_HOST in hosts:
                    yield from _credentials(request)


def _hosts(request: documents.Node | None) -> list[object]:
    node = request.get("allow_hosts") if isinstance(request, documents.Mapping) else None
    items = node.items if isinstance(node, documents.Sequence) else (node,)
    return [item.value for item in items if isinstance(item, documents.Scalar)]


def _of_url(url: documents.Scalar, known: KnownNames, *, allowed: bool) -> Iterator[Problem]:
    try:
        leaf = compile_template(str(url.value), "workflow", source=url.source()).leaf
    except PlaitError:
        return  # the check of the template reports it
    first = leaf.compiled.parts[0] if leaf.compiled.parts else Text("")
    if isinstance(first, Text):
        yield from _check_origin(first.text, leaf, url)
    elif not allowed and not _is_of_the_head(leaf, known):
        what = "the scheme and host of this address come from a value"
        fix = "write them, or name the allowed hosts: allow_hosts: [api.example.org]"
        yield Problem(what, Span(leaf.source, first.start, first.end), fix, code="url-origin")


def _check_origin(text: str, leaf: Leaf, url: documents.Scalar) -> Iterator[Problem]:
    scheme, _, rest = text.partition("://")
    host, *path = _END_OF_HOST.split(rest, maxsplit=1)
    goes_on = not path and len(leaf.compiled.parts) > 1
    is_http = scheme.lower() in ("http", "https") and not any(char in host for char in "@\\ ")
    if not (is_http and (host or goes_on)):
        what = "this is not the address of an HTTP server"
        yield Problem(what, url.span, "begin it with https:// and a host", code="url-origin")
    elif goes_on:
        second = leaf.compiled.parts[1]
        assert not isinstance(second, Text), "text stands beside placeholders only"
        what = "a part of the host of this address comes from a value"
        fix = (
            "write the host, or let the value be all of https://host and name it under allow_hosts"
        )
        yield Problem(what, Span(leaf.source, second.start, second.end), fix, code="url-origin")


def _is_of_the_head(leaf: Leaf, known: KnownNames) -> bool:
    roots = origin_roots(leaf)
    return roots is not None and all(_is_given(root, known) for root in roots)


def _is_given(root: str, known: KnownNames) -> bool:
    name = known.get(root)
    if name is None:  # an unknown name is reported separately
        return True
    return root == "env" or name is ANY_NAME or name.what.startswith(OF_THE_HEAD)


def _credentials(request: documents.Node | None) -> Iterator[Problem]:
    headers = request.get("headers") if isinstance(request, documents.Mapping) else None
    for key, _ in headers.entries if isinstance(headers, documents.Mapping) else ():
        if str(key.value).lower() in CREDENTIALS:
            what = f"the header '{key.value}' would be sent to any host that a value names"
            fix = "name the hosts under allow_hosts, instead of '*'"
            yield Problem(what, key.span, fix, code="url-origin")
