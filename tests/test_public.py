"""The public names, and how little `import plait` loads."""

from __future__ import annotations

import subprocess
import sys

import pytest

import plait

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
