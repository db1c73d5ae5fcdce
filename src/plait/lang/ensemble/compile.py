"""An ensemble in a file: the same parts as in Python, with places for what is wrong with them.

    check_ensemble   everything that is wrong with a document
    load_ensemble    with its inputs: a program that can run
    ensemble_tool    the same for a tool, of the bytes that were judged

Tasks name each other and their agents by id.  What is missing in any text is told at once, before
there is a run.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache

from plait.core import documents
from plait.core.documents import nodes
from plait.core.errors import InputError, Problem
from plait.core.hints import Final
from plait.core.records import dataclass, replace
from plait.core.source import Span
from plait.core.values import Json, Secret
from plait.engine.hooks import Hook
from plait.engine.limits import Limits
from plait.lang.analysis.tool_calls import ToolCall, tool_calls
from plait.lang.common import read_limits
from plait.lang.ensemble.check import check_ensemble
from plait.lang.ensemble.read import NOTHING, _parameters, _Reader
from plait.lang.environment import FlowEnvironment
from plait.lang.findings import Finding
from plait.lang.hooks import hook_tools, read_hooks
from plait.lang.loaded import LoadedFlow
from plait.lang.parameters import Parameter, resolve_parameters
from plait.program.tasks.model import EnsembleSpec
from plait.program.tasks.task_graph import compile_ensemble
from plait.program.tasks.text import (
    TaskTemplates,
)
from plait.schema import Fields

MOST_ENSEMBLES: Final = 64
"""So many that are called as tools are kept as they were read."""


def load_ensemble(
    path: str,
    *,
    given: Mapping[str, Json] | None = None,
    project: str | None = None,
    profile: str | None = None,  # noqa: ARG001 - the signature of load_flow; an ensemble has no profiles
    strict: bool | None = None,
    max_parallel: int | None = None,
    environ: Mapping[str, str] | None = None,
    document: nodes.Node | None = None,
) -> LoadedFlow:
    """The ensemble in a file; InputError with everything that is wrong with it or with what it is
    given.

    `document`: what is in the file, if it was read already.
    """
    plan = read_ensemble(document or documents.load(path), path)
    return _build_flow(plan, path, given or {}, project, strict, max_parallel, environ or {})


def ensemble_tool(
    data: bytes,
    path: str,
    given: Mapping[str, Json],
    *,
    project: str,
    environ: Mapping[str, str],
    max_parallel: int | None = None,
    strict: bool | None = None,
) -> LoadedFlow:
    """The ensemble in a file of which these bytes were judged."""
    return _build_flow(_read_bytes(data, path), path, given, project, strict, max_parallel, environ)


@lru_cache(maxsize=MOST_ENSEMBLES)
def _read_bytes(data: bytes, path: str) -> EnsembleFile:
    return read_ensemble(documents.parse(documents.decode_text(data, path), path), path)


# ── what a file says, whoever runs it ────────────────────────────────────


@dataclass(frozen=True, slots=True)
class EnsembleFile:
    """An ensemble without inputs, and what it wants to be given."""

    spec: EnsembleSpec
    texts: TaskTemplates
    parameters: Mapping[str, Parameter]
    uses: Mapping[str, Span]
    calls: tuple[ToolCall, ...]
    warnings: tuple[Finding, ...]
    secrets: frozenset[str]
    limits: Limits
    hooks: tuple[Hook, ...]
    timeout: float | None


def read_ensemble(document: nodes.Node, path: str) -> EnsembleFile:
    """InputError with every problem of the file."""
    findings = check_ensemble(document)
    problems = [finding.problem for finding in findings if finding.severity == "error"]
    if problems:
        raise InputError.together(problems)
    assert isinstance(document, nodes.Mapping)
    said = Fields("ensemble", document, NOTHING)
    read = _Reader(said, path).read()
    hooks = read_hooks(said.get("hooks"))
    return EnsembleFile(
        read.spec,
        TaskTemplates(read.spec, read.written),
        _parameters(document),
        {**hook_tools(hooks), **read.uses},
        tool_calls(document, "prompt") if read.uses else (),
        tuple(finding for finding in findings if finding.severity == "warning"),
        frozenset(said.strings("secrets")),
        read_limits(said.child("limits")),
        hooks,
        said.seconds("timeout"),
    )


def _build_flow(
    plan: EnsembleFile,
    path: str,
    given: Mapping[str, Json],
    project: str | None,
    strict: bool | None,
    max_parallel: int | None,
    environ: Mapping[str, str],
) -> LoadedFlow:
    inputs = _inputs(plan, given)
    spec = plan.spec if max_parallel is None else replace(plan.spec, max_parallel=max_parallel)
    program = compile_ensemble(spec, plan.texts, inputs, limits=plan.limits, hooks=plan.hooks)
    return LoadedFlow(
        program,
        path,
        os.path.dirname(os.path.realpath(path)) if project is None else project,
        inputs,
        FlowEnvironment({}, {}, {}),
        plan.parameters,
        tool_uses=plan.uses,
        calls=plan.calls,
        warnings=plan.warnings,
        strict=bool(strict),
        timeout=plan.timeout,
        kind="ensemble",
        limits=plan.limits,
        hooks=plan.hooks,
        environ=environ,
    )


# ── what it is given ─────────────────────────────────────────────────────


def _inputs(plan: EnsembleFile, given: Mapping[str, Json]) -> dict[str, Json]:
    """What is given, of the types that are declared, with the defaults; secrets as such.

    An error has all of it: what is not given and which texts ask for that, and what does not fit.
    """
    values, problems = _resolve_inputs(plan.parameters, given)
    values = {
        name: Secret(value) if name in plan.secrets and isinstance(value, str) else value
        for name, value in values.items()
    }
    missing = plan.texts.missing(values)
    told = {} if missing is None else dict.fromkeys(missing.missing_variables)
    # One that a text asks for is told there, where it stands.
    others = [problem for name, problem in problems if name not in told]
    if missing is not None:
        missing.problems = (*missing.problems, *others)
        raise missing
    if others:
        raise InputError.together(others)
    return values


def _resolve_inputs(
    parameters: Mapping[str, Parameter], given: Mapping[str, Json]
) -> tuple[dict[str, Json], list[tuple[str, Problem]]]:
    """The value of each input, and by name what is wrong with it."""
    if not parameters:
        return dict(given), []
    values: dict[str, Json] = {}
    problems: list[tuple[str, Problem]] = []
    optional = {name: replace(one, required=False) for name, one in parameters.items()}
    for name in dict.fromkeys((*parameters, *given)):
        declared_so = {name: parameters[name]} if name in parameters else optional
        offered = {name: given[name]} if name in given else {}
        try:
            values |= resolve_parameters(declared_so, offered)
        except InputError as error:
            problems += [(name, problem) for problem in error.problems]
            values |= offered
    return values, problems


# ── what a file says ─────────────────────────────────────────────────────


# ── what is wrong with it ────────────────────────────────────────────────
