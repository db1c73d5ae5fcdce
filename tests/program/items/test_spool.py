"""The spool has the same items for every run attempt, and is complete or missing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.core.errors import InputError
from plait.core.values import Json, Secret
from plait.program.items import with_keys
from plait.program.items.spool import (
    SpoolInfo,
    inspect_spool,
    read_spool,
    require_spool,
    write_spool,
)
from share import examples

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@settings(max_examples=examples(50))
@given(items=st.lists(json_values, max_size=6))
def test_what_is_written_is_read_again(
    tmp_path_factory: pytest.TempPathFactory, items: list[Json]
) -> None:
    file = str(tmp_path_factory.mktemp("spool") / "items")
    pairs = list(with_keys(items))
    written = write_spool(iter(pairs), file)
    assert list(read_spool(file)) == [(index, key, item) for index, (key, item) in enumerate(pairs)]
    assert written.count == len(items)
    assert inspect_spool(file) == written


def test_equal_items_have_an_equal_digest_and_others_do_not(tmp_path: Path) -> None:
    one, same, other = (
        write_spool(pairs, str(tmp_path / name))
        for name, pairs in (("a", [("k", 1)]), ("b", [("k", 1)]), ("c", [("k", 2)]))
    )
    assert one == same != other


def test_items_that_fail_leave_what_was_there(tmp_path: Path) -> None:
    file = tmp_path / "items"
    write_spool([("old", 1)], str(file))

    def failing() -> Iterator[tuple[str, Json]]:
        yield "new", 1
        raise InputError("the input ends here")

    with pytest.raises(InputError):
        write_spool(failing(), str(file))
    assert [key for _, key, _ in read_spool(str(file))] == ["old"]
    assert os.listdir(tmp_path) == ["items"]


def test_a_pipe_in_the_place_of_a_spool_does_not_block(tmp_path: Path) -> None:
    file = str(tmp_path / "items.jsonl")
    written = write_spool([("a", 1)], file)
    os.unlink(file)
    os.mkfifo(file)
    with pytest.raises(InputError):
        require_spool(file, written)


def test_no_items_are_a_spool_too(tmp_path: Path) -> None:
    file = str(tmp_path / "items")
    assert write_spool([], file).count == 0
    assert list(read_spool(file)) == []


@pytest.mark.parametrize("damage", [b'["b",2', b'["b"]\n', b"3\n", b'{"b": 2}\n', b"\xff\n", b"\n"])
def test_a_damaged_spool_is_noticed(tmp_path: Path, damage: bytes) -> None:
    file = tmp_path / "items"
    written = write_spool([("a", 1)], str(file))
    file.write_bytes(file.read_bytes() + damage)
    with pytest.raises(InputError, match="changed or damaged"):
        list(read_spool(str(file)))
    with pytest.raises(InputError, match="changed or damaged"):
        require_spool(str(file), written)


def test_an_untouched_spool_is_what_was_written(tmp_path: Path) -> None:
    file = str(tmp_path / "items")
    require_spool(file, write_spool([("a", 1), ("b", "x")], file))


def test_a_missing_spool_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        inspect_spool(str(tmp_path / "none"))
    assert caught.value.what == "the items of this run cannot be read: No such file or directory"


def test_other_users_may_not_read_it_and_secrets_are_masked(tmp_path: Path) -> None:
    file = tmp_path / "items"
    assert write_spool([("a", {"token": Secret("hidden")})], str(file)) == SpoolInfo(
        1, inspect_spool(str(file)).digest
    )
    assert file.stat().st_mode & 0o077 == 0
    assert file.read_text() == '["a",{"token":"***"}]\n'
