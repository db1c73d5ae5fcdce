"""Plait runs tools, shell commands and language-model agents from plain files.

The public names; each is imported when it is first used.
"""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = False  # type checkers read it as true; importing `typing` would cost more than all else here
if TYPE_CHECKING:
    from plait.app import (
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
    from plait.app.flows import FlowResult, run
    from plait.errors import EnsembleError, PlaitError, PromptTemplateError
    from plait.scope import Scope
    from plait.steps.ensemble_parts import Agent, Loop, Manager, MapReduce, Task, TaskOutput
    from plait.template.template import Template
    from plait.values import Secret

_HOME = {
    "Agent": "steps.ensemble_parts",
    "Ensemble": "app.ensembles",
    "EnsembleError": "errors",
    "EnsembleOutput": "app.ensembles",
    "FlowResult": "app.flows",
    "Loop": "steps.ensemble_parts",
    "Manager": "steps.ensemble_parts",
    "MapReduce": "steps.ensemble_parts",
    "PlaitError": "errors",
    "PromptTemplateError": "errors",
    "Scope": "scope",
    "Secret": "values",
    "ShellResult": "app",
    "Task": "steps.ensemble_parts",
    "TaskOutput": "steps.ensemble_parts",
    "Template": "template.template",
    "call": "app",
    "compile": "app",
    "escape_shell_value": "app",
    "matches": "app",
    "render": "app",
    "resolve_prompt": "app",
    "run": "app.flows",
    "sh": "app",
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
