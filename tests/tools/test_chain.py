"""Chains: which element answers, the error when none does, and the cache."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.core.errors import InputError, PlaitError
from plait.core.safe_files import FileStamp
from plait.tools import chain as chain_module
from plait.tools.chain import Chain, Chains
from plait.tools.headers import ItemCache
from plait.tools.spaces import Space, Spaces, ToolLocation
from plait.tools.tool_file import Header, ToolFile
from share import examples


def put(top: Path, item_id: str, executor: str | None) -> Path:
    path = top / "tools" / f"{item_id}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = {"tool_type": "primitive"} if executor is None else {"executor_id": executor}
    path.write_text(json.dumps(kind))
    return path


def chains(top: Path) -> Chains:
    return Chains(
        Spaces((Space("project", str(top)),)),
        ItemCache(clock=lambda: 4 * 10**18),
        clock=lambda: 4e9,
    )


def test_a_missing_executor_is_reported_with_what_was_meant(tmp_path: Path) -> None:
    path = put(tmp_path, "a", "my/runtme")
    put(tmp_path, "my/runtime", "core/primitives/subprocess")
    with pytest.raises(InputError) as caught:
        chains(tmp_path).get("a")
    assert str(caught.value) == (
        f"{path}: 'a' is executed by 'my/runtme', which does not exist in the project space or below\n"
        "fix: did you mean 'my/runtime'?"
    )


def test_an_executor_cannot_lead_out_of_its_space(tmp_path: Path) -> None:
    put(tmp_path, "a", "../../etc/x")
    with pytest.raises(InputError) as caught:
        chains(tmp_path).get("a")
    assert caught.value.code == "bad-id"


def test_a_file_without_executor_is_no_primitive(tmp_path: Path) -> None:
    put(tmp_path, "a", "b")
    path = put(tmp_path, "b", None)
    with pytest.raises(InputError) as caught:
        chains(tmp_path).get("a")
    assert (caught.value.code, caught.value.where) == ("no-executor", str(path))


def test_the_digest_distinguishes_chains() -> None:
    def one(digest: str) -> ToolFile:
        return ToolFile("tool", "a", Space("project", "/p"), "/p/a", b"", digest, Header())

    digests = {
        Chain(items, "x").digest
        for items in [(one("a"),), (one("b"),), (one("a"), one("b")), (one("b"), one("a"))]
    }
    assert len(digests) == 4


def test_a_change_while_a_file_is_read_is_seen_next_time(tmp_path: Path) -> None:
    """The cached state is the one from before the bytes were read."""
    path = put(tmp_path, "a", "core/primitives/subprocess")

    class Meddling(ItemCache):
        """Somebody writes the file right after we have read it."""

        def get(self, found: ToolLocation) -> ToolFile:
            item = super().get(found)
            path.write_text(
                json.dumps({"executor_id": "core/primitives/subprocess", "version": "2"})
            )
            return item

    meddled = Chains(Spaces((Space("project", str(tmp_path)),)), Meddling(), clock=lambda: 4e9)
    assert meddled.get("a").tool.header.version is None
    assert meddled.get("a").tool.header.version == "2"


def test_only_so_many_chains_are_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_module, "MAX_CACHED", 3)
    for n in range(5):
        put(tmp_path, f"t{n}", "core/primitives/subprocess")
    remembering = chains(tmp_path)
    for _ in range(2):
        for n in range(5):
            remembering.get(f"t{n}")
    assert len(remembering._known) == 3


def test_a_stamp_differs_with_every_field() -> None:
    stamps = {FileStamp(*(int(n == field) for n in range(5))) for field in range(5)}
    assert len(stamps) == 5


@settings(max_examples=examples(50))
@given(
    edges=st.dictionaries(
        st.sampled_from("abcd"), st.sampled_from(["a", "b", "c", "d", "e", "core/primitives/mcp"])
    )
)
def test_every_graph_of_executors_ends_in_a_chain_or_an_error(
    edges: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    top = tmp_path_factory.mktemp("space")
    for item_id, executor in edges.items():
        put(top, item_id, executor)
    try:
        ids, code = chains(top).get("a").ids, None
    except PlaitError as error:
        ids, code = ("core/primitives/mcp",), error.code
    assert code in (None, "unknown-tool", "missing-executor", "chain-cycle")
    assert ids[-1] == "core/primitives/mcp"
    assert list(ids[1:]) == [edges[item_id] for item_id in ids[:-1]]
