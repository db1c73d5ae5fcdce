"""The bundle of a command: one file with the bytecode of its modules."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import plait

PROGRAM = """\
import json, sys
from plait.cli import main
status = main(["run", "flow.yaml", "--quiet"])
shown = {}
for name, module in list(sys.modules.items()):
    if name.startswith("plait."):
        spec = module.__spec__
        shown[name] = [
            module.__file__, module.__cached__, module.__package__, module.__doc__, spec.name, spec.origin,
            spec.has_location, spec.submodule_search_locations, getattr(module, "__path__", None),
            spec.loader.is_package(name), spec.loader.path,
        ]
bundled = [name for name in shown if type(sys.modules[name].__loader__).__name__ == "_Loader"]
print(json.dumps([status, sorted(shown.items()), bundled]))
"""


class Copy:
    """A copy of Plait with a cache of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source = folder / "plait" / "engine" / "journal.py"
        self.bundle = folder / "plait" / "__pycache__" / f"bundle-run.{TAG}.pyc"
        self.project = folder / "project"
        self.project.mkdir()
        (self.project / "flow.yaml").write_text('- shell: "true"\n')

    def run(self, **changes: str) -> tuple[list[Any], list[str]]:
        """Run a flow; returns what the modules say of themselves, and which came from the bundle."""
        left_out = ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX")
        env = {name: value for name, value in os.environ.items() if name not in left_out}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**env, "PYTHONPATH": str(self.folder), "USER_SPACE": str(self.folder), **changes},
            cwd=self.project,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        status, modules, bundled = json.loads(done.stdout)
        assert status == 0
        return modules, bundled


TAG = sys.implementation.cache_tag


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(Path(plait.__file__).parent, folder / "plait")
    for old in (folder / "plait" / "__pycache__").glob("bundle-*"):
        old.unlink()
    return Copy(folder)


@pytest.fixture
def fresh(copy: Copy) -> Iterator[Copy]:
    """The copy without a bundle, its sources as they were."""
    text, status = copy.source.read_text(), copy.source.stat()
    yield copy
    copy.source.write_text(text)
    os.utime(copy.source, ns=(status.st_atime_ns, status.st_mtime_ns))
    if copy.bundle.exists():
        copy.bundle.unlink()


def test_the_second_command_loads_the_same_modules_from_the_bundle(fresh: Copy) -> None:
    first, none = fresh.run()
    second, bundled = fresh.run()
    assert none == []
    assert len(bundled) > 100
    assert second == first


def test_a_source_that_has_changed_counts(fresh: Copy) -> None:
    fresh.run()
    old = fresh.source.stat()
    text = fresh.source.read_text()
    fresh.source.write_text(text + "\nCHANGED = True\n")
    os.utime(fresh.source, ns=(old.st_atime_ns, old.st_mtime_ns))  # its size differs
    assert fresh.run()[1] == []
    assert len(fresh.run()[1]) > 100  # it was written again
    fresh.source.write_text(text.replace('"""', '"""*', 1) + "\nCHANGED = 1234\n")
    modules = dict(fresh.run()[0])
    assert modules["plait.engine.journal"][3].startswith("*")


def test_a_source_that_is_gone_counts(fresh: Copy) -> None:
    extra = fresh.source.with_name("extra.py")
    extra.write_text("")
    fresh.source.write_text(fresh.source.read_text() + "\nimport plait.engine.extra\n")
    fresh.run()
    assert "plait.engine.extra" in fresh.run()[1]
    extra.unlink()
    fresh.source.write_text(fresh.source.read_text().replace("import plait.engine.extra", ""))
    assert fresh.run()[1] == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: b"",
        lambda data: data[:3],
        lambda data: data[:100],
        lambda data: data[: len(data) // 2],
        lambda data: data[:-1],
        lambda data: b"\0" + data[1:],  # the bytecode of another Python
        lambda data: data.replace(b"/copy", b"/cup4", 1),  # of another folder
    ],
)
def test_a_damaged_bundle_is_written_anew(fresh: Copy, damage: Any) -> None:
    fresh.run()
    whole = fresh.bundle.read_bytes()
    fresh.bundle.write_bytes(damage(whole))
    assert fresh.run()[1] == []
    assert len(fresh.run()[1]) > 100


def test_python_is_asked_whether_bytecode_is_written(fresh: Copy) -> None:
    fresh.run(PYTHONDONTWRITEBYTECODE="1")
    assert not fresh.bundle.exists()
    fresh.run(PYTHONPYCACHEPREFIX=str(fresh.folder / "elsewhere"))
    assert not fresh.bundle.exists()
    assert list((fresh.folder / "elsewhere").rglob("bundle-run*"))


def test_a_folder_that_cannot_be_written_is_no_failure(fresh: Copy) -> None:
    fresh.bundle.mkdir()
    assert fresh.run()[1] == []
    fresh.bundle.rmdir()
