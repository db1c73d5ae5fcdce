"""Which backend runs the items of a map: the command line says it, else the map, else the flow."""

from __future__ import annotations

import pytest

from plait.adapters.local import LocalBackend, make_backend
from plait.core.documents import parse
from plait.core.errors import InputError
from plait.engine.backend import BACKENDS
from plait.lang.common import parse_backend
from plait.schema import Fields, validate
from plait.scope import Scope

CHOSEN = [
    # flow                                              backend
    ("steps: []",                                       "local"),
    ("backend: a\nmap: {input: x, steps: []}",          "a"),
    ("backend: a\nmap: {backend: b, input: x}",         "b"),
    ("map: {backend: b, input: x}",                     "b"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), CHOSEN)
def test_a_map_names_its_backend_or_its_flow_does(text: str, expected: str) -> None:
    assert parse_backend(Fields("flow", parse(text, "f.yaml"), Scope())) == expected  # type: ignore[arg-type]


def test_every_backend_of_the_table_is_there_and_may_be_named_in_a_file() -> None:
    for name in BACKENDS:
        assert callable(make_backend(name).run)
        assert validate(parse(f"map: {{backend: {name}, input: x, steps: [/a]}}", "f.yaml")) == []


def test_a_backend_is_added_by_a_row() -> None:
    assert isinstance(
        make_backend("more", known={"more": "plait.adapters.local:LocalBackend"}), LocalBackend
    )


def test_an_unknown_backend_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError) as caught:
        make_backend("locl")
    assert str(caught.value) == "there is no backend 'locl'\nfix: did you mean 'local'?"
    [problem] = validate(parse("map: {backend: locl, input: x, steps: [/a]}", "f.yaml"))
    assert problem.what == "'backend' must be one of local, dask, or dask://HOST:PORT"


ADDRESSES = [
    # name            the message
    ("local://x",     "the backend 'local' takes no address\nfix: write --backend local"),
    ("dask://",       "the address is missing in the backend 'dask://'\nfix: write dask://HOST:PORT, or dask alone"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "message"), ADDRESSES)
def test_an_address_that_cannot_be_one_is_refused(name: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        make_backend(name)
    assert str(caught.value) == message


def test_a_cluster_may_be_named_in_a_file_by_its_address() -> None:
    assert (
        validate(parse("map: {backend: 'dask://host:8786', input: x, steps: [/a]}", "f.yaml")) == []
    )
