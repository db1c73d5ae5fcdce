"""The public names, and how little `import plait` loads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import plait
from plait import tool_api

PUBLIC = [
    "Agent", "Ensemble", "EnsembleError", "EnsembleOutput", "FlowResult", "Loop", "Manager", "MapReduce", "PlaitError",
    "PromptTemplateError", "Scope", "Secret", "ShellResult", "Task", "TaskOutput", "Template", "call", "compile",
    "escape_shell_value", "matches", "render", "resolve_prompt", "run", "sh",
]  # fmt: skip


def loaded(code: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after some code."""
    script = (
        f"import sys\nbefore = set(sys.modules)\n{code}\nprint(*sorted(set(sys.modules) - before))"
    )
    path = [entry for entry in sys.path if entry]
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:] = {path!r}\n{script}"],
        capture_output=True, text=True, check=True, timeout=30,
    )  # fmt: skip
    return set(done.stdout.split())


def test_the_public_names_are_these() -> None:
    assert sorted(plait.__all__) == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_found_and_listed(name: str) -> None:
    assert getattr(plait, name).__name__ == name
    assert name in dir(plait)


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"^module 'plait' has no attribute 'rendr'$"):
        plait.rendr  # noqa: B018


def test_importing_plait_loads_one_module() -> None:
    assert loaded("import plait") - {"__future__"} == {"plait"}


HEAVY = {
    "yaml",
    "argparse",
    "logging",
    "subprocess",
    "difflib",
    "re2",
    "plait.core.documents",
    "plait.template.codegen",
    "asyncio",
}


@pytest.mark.parametrize(
    "code", ["import plait", "import plait; plait.PlaitError", "import plait; plait.Secret"]
)
def test_errors_and_secrets_load_nothing_heavy(code: str) -> None:
    modules = loaded(code)
    assert modules & HEAVY == set()
    assert "plait.template" not in modules


def test_rendering_loads_only_the_engine() -> None:
    modules = loaded("import plait; assert plait.render('${a}', {'a': 1}) == 1")
    assert modules & (HEAVY - {"plait.template.codegen"}) == set()
    assert "plait.template.grammar" in modules


# ── plait.tool_api ───────────────────────────────────────────────────────

TOOL_API = [
    "InputError", "Json", "MAX_FILE", "OutsideError", "ProcessError", "find_guarded_folder", "find_json",
    "read_file", "tool_environment", "value_text",
]  # fmt: skip


def test_the_names_for_authors_of_tools_are_these() -> None:
    assert sorted(tool_api.__all__) == TOOL_API
    assert [name for name in TOOL_API if not hasattr(tool_api, name)] == []


def test_a_tool_reads_files_below_a_folder_only(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\n")
    (tmp_path / "link").symlink_to("/etc/hostname")
    assert tool_api.read_file(str(tmp_path), "a.txt") == b"one\n"
    assert tool_api.read_file(str(tmp_path), "b.txt") is None
    for path in ("../a.txt", "/etc/hostname", "link"):
        with pytest.raises(tool_api.OutsideError):
            tool_api.read_file(str(tmp_path), path)


def test_a_tool_gets_paths_and_values_of_json() -> None:
    data = {"items": [{"id": 1}, {"id": 2}]}
    assert tool_api.find_json("$..id", data) == [
        ("$['items'][0]['id']", 1),
        ("$['items'][1]['id']", 2),
    ]
    with pytest.raises(tool_api.InputError):
        tool_api.find_json("items", data)


def test_the_environment_for_processes_of_a_tool_has_no_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.setenv("API_TOKEN", "s3cret")
    assert tool_api.tool_environment()["HOME"] == "/home/ada"
    assert "API_TOKEN" not in tool_api.tool_environment()
