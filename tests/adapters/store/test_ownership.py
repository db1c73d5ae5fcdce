"""Property: whatever is done to recorded state, what runs is what this user recorded, or nothing does."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.adapters.store import Runs
from plait.core.errors import JournalError, PlaitError, TrustError
from plait.core.values import Json
from plait.engine.events import RunEnded
from plait.tools.trust.seal import Seals

FACTS: dict[str, Json] = {
    "file": "/p/flow.yaml",
    "project": "/p",
    "tool": None,
    "options": {"inputs": {"n": 1.5}},
}


class Scene:
    """A run of ours, one of a stranger's, and where they are now."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.root = top / "mine"
        self.seals = Seals(str(top / "me"), str(self.root), home=str(top))
        self.run = self._made(self.root, self.seals, FACTS)
        self.other = self._made(self.root, self.seals, {**FACTS, "file": "/p/other.yaml"})
        stranger = Seals(str(top / "stranger"), str(top / "theirs"), home=str(top))
        self.theirs = self._made(top / "theirs", stranger, {**FACTS, "file": "/evil.yaml"})

    def _made(self, root: Path, seals: Seals, facts: dict[str, Json]) -> str:
        with Runs(str(root), seals=seals).create(facts) as opened:
            return opened.id

    def folder(self) -> Path:
        return self.root / ".ai/state/runs" / self.run

    def believed(self) -> dict[str, Json] | None:
        """The facts that a resumed run would go by; None if it is refused."""
        seals = Seals(str(self.top / "me"), str(self.root), home=str(self.top))
        try:
            with Runs(str(self.root), seals=seals).open_own(self.run, write=True) as opened:
                return dict(opened.facts)
        except PlaitError:
            return None


def change_facts(scene: Scene, name: str, value: object) -> None:
    with sqlite3.connect(scene.folder() / "journal.db") as database:
        (text,) = database.execute("SELECT value FROM properties WHERE name = 'facts'").fetchone()
        facts = json.dumps({**json.loads(text), name: value})
        database.execute("UPDATE properties SET value = ? WHERE name = 'facts'", (facts,))
    database.close()


def take_facts_of(scene: Scene, other: Path) -> None:
    with sqlite3.connect(other / "journal.db") as database:
        (text,) = database.execute("SELECT value FROM properties WHERE name = 'facts'").fetchone()
    database.close()
    with sqlite3.connect(scene.folder() / "journal.db") as database:
        database.execute("UPDATE properties SET value = ? WHERE name = 'facts'", (text,))
    database.close()


def copy_project(scene: Scene) -> None:
    shutil.copytree(scene.root, scene.top / "copy")
    scene.root = scene.top / "copy"


def copy_over(scene: Scene) -> None:
    """As a checkout does: the old file goes, and another one takes its name."""
    journal = scene.folder() / "journal.db"
    data = journal.read_bytes()
    (scene.top / "keeps-the-number").touch()
    held = journal.open("rb")  # its number is not given away while somebody has it open
    journal.unlink()
    journal.write_bytes(data)
    held.close()


def take_journal_of_stranger(scene: Scene) -> None:
    shutil.copyfile(
        scene.top / "theirs/.ai/state/runs" / scene.theirs / "journal.db",
        scene.folder() / "journal.db",
    )


def take_folder_of_stranger(scene: Scene) -> None:
    shutil.rmtree(scene.folder())
    shutil.copytree(scene.top / "theirs/.ai/state/runs" / scene.theirs, scene.folder())


def rename_run(scene: Scene) -> None:
    renamed = scene.folder().with_name("renamed1")
    scene.folder().rename(renamed)
    scene.run = "renamed1"


def link(scene: Scene, part: str) -> None:
    place = scene.root / part.replace("RUN", scene.run)
    hidden = scene.top / "hidden"
    place.rename(hidden)
    place.symlink_to(hidden)


def lose_key(scene: Scene) -> None:
    (scene.top / "me/trust/seal.key").unlink()


def other_key(scene: Scene) -> None:
    shutil.copyfile(scene.top / "stranger/trust/seal.key", scene.top / "me/trust/seal.key")


def move_project(scene: Scene) -> None:
    scene.root.rename(scene.top / "moved")
    scene.root = scene.top / "moved"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
names = st.sampled_from([*FACTS, "seal", "python", "kind", "secret_inputs"])
others: st.SearchStrategy[Callable[[Scene], None]] = st.sampled_from([
    copy_project, copy_over, take_journal_of_stranger, take_folder_of_stranger, rename_run, lose_key, other_key,
    lambda scene: take_facts_of(scene, scene.root / ".ai/state/runs" / scene.other),
    lambda scene: take_facts_of(scene, scene.top / "theirs/.ai/state/runs" / scene.theirs),
])  # fmt: skip
changes = st.builds(
    lambda name, value: lambda scene: change_facts(scene, name, value), names, json_values
)
links = st.sampled_from(
    [".ai", ".ai/state", ".ai/state/runs", ".ai/state/runs/RUN", ".ai/state/runs/RUN/journal.db"]
)
linked = st.builds(lambda part: lambda scene: link(scene, part), links)


@given(deed=others | changes | linked, moved=st.booleans())
def test_only_what_this_user_recorded_in_this_very_folder_is_believed(
    deed: Callable[[Scene], None], moved: bool
) -> None:
    with tempfile.TemporaryDirectory() as top:
        scene = Scene(Path(top))
        if moved:
            move_project(scene)
        assert scene.believed() == FACTS
        deed(scene)
        # What was changed into what it was before is no change.
        assert scene.believed() in (None, FACTS)


REFUSED: list[Callable[[Scene], None]] = [
    copy_project, copy_over, take_journal_of_stranger, take_folder_of_stranger, rename_run, lose_key, other_key,
    lambda scene: change_facts(scene, "file", "/evil.yaml"), lambda scene: change_facts(scene, "seal", "0" * 64),
    lambda scene: change_facts(scene, "more", 1), lambda scene: link(scene, ".ai/state"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_whatever_was_changed_or_copied_is_refused(number: int, tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    REFUSED[number](scene)
    assert scene.believed() is None


def test_what_the_owner_amends_stays_the_owners(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    runs = Runs(str(scene.root), seals=scene.seals)
    with runs.open_own(scene.run, write=True) as opened:
        opened.update_facts(file="/p/next.yaml", odd="\udcff\u2028", number=0.1)
    assert scene.believed() == {
        **FACTS,
        "file": "/p/next.yaml",
        "odd": "\udcff\u2028",
        "number": 0.1,
    }


def test_runs_of_others_are_never_removed_and_push_none_of_ours_out(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    theirs, at = scene.top / "theirs/.ai/state/runs" / scene.theirs, os.stat(tmp_path).st_mtime
    with sqlite3.connect(theirs / "journal.db") as database:
        database.execute("UPDATE properties SET value = ? WHERE name = 'created'", (at + 4e8,))
    database.close()
    (theirs / "run.json").write_text(json.dumps({"number": 99, "created": at + 4e8}))
    shutil.copytree(theirs, scene.root / ".ai/state/runs" / scene.theirs)
    ended(scene, scene.run)
    runs = Runs(str(scene.root), seals=scene.seals)
    assert [one.id for one in runs.list() if one.foreign] == [scene.theirs]
    assert runs.find("last") == scene.other
    assert runs.remove_old(keep=1, days=30) == ()
    late = Runs(str(scene.root), seals=scene.seals, now=lambda: at + 8e8)
    with late.create(FACTS) as opened:
        newest = opened.id
    assert late.remove_old(keep=1, days=30) == (scene.run,)
    assert {one.id for one in late.list()} == {scene.theirs, scene.other, newest}


@pytest.mark.parametrize("first", ["me", "stranger", "nobody"])
@pytest.mark.parametrize("then", ["me", "stranger", "nobody"])
def test_a_list_says_for_each_viewer_whose_runs_they_are(
    first: str, then: str, tmp_path: Path
) -> None:
    """An earlier viewer: the index keeps summaries as that viewer saw them."""
    scene = Scene(tmp_path)

    def foreign(viewer: str) -> set[bool]:
        seals = Seals(str(tmp_path / viewer), str(scene.root), home=str(tmp_path))
        return {one.foreign for one in Runs(str(scene.root), seals=seals).list()}

    for viewer in (first, then):
        assert foreign(viewer) == {viewer != "me"}


def ended(scene: Scene, run: str) -> None:
    with Runs(str(scene.root), seals=scene.seals).open_own(run, write=True) as opened:
        opened.journal.append(RunEnded("done", None))


@pytest.mark.parametrize("link", ["removed", "runs", "."])
def test_nothing_behind_a_link_is_taken_for_the_rest_of_a_run(link: str, tmp_path: Path) -> None:
    (tmp_path / "precious/removed/photos").mkdir(parents=True)
    (tmp_path / "precious/photos").mkdir()
    state = tmp_path / "project/.ai/state"
    place = state if link == "." else state / link
    place.parent.mkdir(parents=True)
    place.symlink_to(tmp_path / "precious")
    with pytest.raises(JournalError, match="this is a link"):
        Runs(str(tmp_path / "project")).remove_old(keep=1, days=30)
    assert (tmp_path / "precious/photos").is_dir()
    assert (tmp_path / "precious/removed/photos").is_dir()


def test_an_index_that_a_clone_brought_along_is_not_opened(tmp_path: Path) -> None:
    """Its journal could name any file that SQLite would remove."""
    scene = Scene(tmp_path)
    Runs(str(scene.root), seals=scene.seals).list()
    shutil.copytree(scene.root, tmp_path / "copy")
    copy = Runs(str(tmp_path / "copy"), seals=scene.seals)
    (brought,) = (tmp_path / "copy/.ai/state").glob("runs-*.db")
    brought.write_bytes(b"not a database")
    assert [one.foreign for one in copy.list()] == [True, True]
    assert brought.read_bytes() == b"not a database"
    assert Path(copy.index_file) != brought


def test_a_store_of_the_app_always_asks_for_seals() -> None:
    """`Runs` without seals believes everything: that is for tests, and written nowhere else."""
    source = Path(__file__).parents[3] / "src/plait"
    made = [
        (file.relative_to(source).as_posix(), line.strip())
        for file in source.rglob("*.py")
        for line in file.read_text("utf-8").splitlines()
        if ("Runs(" in line or "ResultCache(" in line) and not line.startswith("class ")
    ]
    assert sorted(made) == [
        ("app/runs.py", "return Runs(project, seals=seals_for(project))"),
        (
            "app/services.py",
            "self._kept_results = ResultCache(self._project, seals=seals_for(self._project))",
        ),
    ]
    writes = [
        file.relative_to(source).as_posix()
        for file in source.rglob("*.py")
        if ".open(" in file.read_text("utf-8") and "write=True" in file.read_text("utf-8")
    ]
    assert sorted(writes) == ["adapters/store/runs.py", "app/takeover.py"]


def test_keys_are_made_once_by_the_first_process(tmp_path: Path) -> None:
    first, second = (Seals(str(tmp_path / "me/.ai"), str(tmp_path / "p")) for _ in range(2))
    seal = first.make("text")
    assert second.holds("text", seal)
    assert second.make("text") == seal
    assert not second.holds("texT", seal)
    assert not second.holds("text", "")
    key = tmp_path / "me/.ai/trust/seal.key"
    key.chmod(0o644)
    with pytest.raises(TrustError):
        Seals(str(tmp_path / "me/.ai"), str(tmp_path / "p")).holds("text", seal)


def test_a_seal_is_hmac_sha256(tmp_path: Path) -> None:
    import hmac

    seals = Seals(str(tmp_path / "me/.ai"), str(tmp_path / "p"))
    seal = seals.make("ünï\udcff")
    key = bytes.fromhex((tmp_path / "me/.ai/trust/seal.key").read_text())
    assert seal == hmac.new(key, "ünï\udcff".encode("utf-8", "surrogatepass"), "sha256").hexdigest()


def test_links_in_the_way_to_the_state_are_errors_and_nothing_is_made_behind_them(
    tmp_path: Path,
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "p").mkdir()
    (tmp_path / "p/.ai").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(JournalError, match="this is a link"):
        Runs(str(tmp_path / "p")).create({})
    assert list((tmp_path / "elsewhere").iterdir()) == []
