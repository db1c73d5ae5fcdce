"""Plait runs tools, shell commands and language-model agents from plain files.

The public names; each is imported when it is first used.
"""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = (
    False  # type checkers read it as true; importing `typing` would cost more than all else here
)
if TYPE_CHECKING:
    from plait.app.api import (
        ShellResult,
        call,
        compile,
        escape_shell_value,
        matches,
        render,
        resolve_prompt,
        sh,
    )
    from plait.app.ensembles import Ensemble, EnsembleOutput
    from plait.app.runs import FlowResult, run
    from plait.core.errors import EnsembleError, PlaitError, PromptTemplateError
    from plait.core.values import Secret
    from plait.program.tasks.model import Agent, Loop, Manager, MapReduce, Task, TaskOutput
    from plait.scope import Scope
    from plait.template.template import Template

_HOME = {
    "Agent": "program.tasks.model",
    "Ensemble": "app.ensembles",
    "EnsembleError": "core.errors",
    "EnsembleOutput": "app.ensembles",
    "FlowResult": "app.runs",
    "Loop": "program.tasks.model",
    "Manager": "program.tasks.model",
    "MapReduce": "program.tasks.model",
    "PlaitError": "core.errors",
    "PromptTemplateError": "core.errors",
    "Scope": "scope",
    "Secret": "core.values",
    "ShellResult": "app.api",
    "Task": "program.tasks.model",
    "TaskOutput": "program.tasks.model",
    "Template": "template.template",
    "call": "app.api",
    "compile": "app.api",
    "escape_shell_value": "app.api",
    "matches": "app.api",
    "render": "app.api",
    "resolve_prompt": "app.api",
    "run": "app.runs",
    "sh": "app.api",
}

__all__ = [
    "Agent",
    "Ensemble",
    "EnsembleError",
    "EnsembleOutput",
    "FlowResult",
    "Loop",
    "Manager",
    "MapReduce",
    "PlaitError",
    "PromptTemplateError",
    "Scope",
    "Secret",
    "ShellResult",
    "Task",
    "TaskOutput",
    "Template",
    "call",
    "compile",
    "escape_shell_value",
    "matches",
    "render",
    "resolve_prompt",
    "run",
    "sh",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'plait' has no attribute '{name}'")
    from importlib import import_module

    value = getattr(import_module(f"plait.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
