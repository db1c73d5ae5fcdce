"""Read an ensemble file, and compile it with its inputs.

The parts are the same as in Python. Tasks refer to each other and to their agents by id.
"""

from __future__ import annotations

from collections.abc import Mapping

from plait.core.documents import nodes
from plait.core.records import dataclass, replace
from plait.core.source import Span
from plait.core.values import Json
from plait.engine.hook_events import Hook
from plait.engine.limits import Limits
from plait.lang.analysis.tool_calls import ToolCall, tool_calls
from plait.lang.common import read_limits
from plait.lang.ensemble.check import check_ensemble
from plait.lang.ensemble.read import NOTHING, EnsembleReader, ensemble_parameters
from plait.lang.findings import Finding, require_no_errors, warnings_in
from plait.lang.flow_text import FlowText
from plait.lang.hooks import hook_tools, read_hooks
from plait.lang.loaded import LoadedFlow, LoadOptions, make_flow
from plait.lang.parameters import Parameter, resolve_inputs, seal_inputs
from plait.program.tasks.model import EnsembleSpec
from plait.program.tasks.task_graph import compile_ensemble
from plait.program.tasks.text import (
    TaskTemplates,
)
from plait.program.tasks.units import FilledEnsemble
from plait.schema import Fields


@dataclass(frozen=True, slots=True)
class EnsembleFile:
    """An ensemble without inputs."""

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
    source: FlowText

    def compile(self, inputs: Mapping[str, Json], options: LoadOptions) -> LoadedFlow:
        values = _inputs(self, inputs)
        most = options.max_parallel
        spec = self.spec if most is None else replace(self.spec, max_parallel=most)
        ensemble = FilledEnsemble(spec, self.texts, self.texts.fill_all(values))
        program = compile_ensemble(ensemble, limits=self.limits, hooks=self.hooks)
        return make_flow(self, program, values, options)


def read_flow(source: FlowText, project: str | None = None) -> EnsembleFile:  # noqa: ARG001 - of Language
    document = source.document
    findings = require_no_errors(check_ensemble(document))
    assert isinstance(document, nodes.Mapping)
    fields = Fields("ensemble", document, NOTHING)
    read = EnsembleReader(fields, source.path).read()
    hooks = read_hooks(fields.get("hooks"))
    return EnsembleFile(
        read.spec,
        TaskTemplates(read.spec, read.written),
        ensemble_parameters(document),
        {**hook_tools(hooks), **read.uses},
        tool_calls(document, "prompt") if read.uses else (),
        warnings_in(findings),
        frozenset(fields.strings("secrets")),
        read_limits(fields.child("limits")),
        hooks,
        fields.seconds("timeout"),
        source,
    )


# ── inputs ─────────────────────────────────────────────────────


def _inputs(plan: EnsembleFile, given: Mapping[str, Json]) -> dict[str, Json]:
    """The inputs; an error names all missing and wrong inputs, and the texts that use them."""
    resolved = resolve_inputs(
        plan.parameters, given, takes_more=not plan.parameters, secrets=plan.secrets
    )
    values = seal_inputs(resolved.values, plan.secrets)
    missing = plan.texts.missing_error(values)
    if missing is None:
        resolved.require()
        return values
    # An input that a text uses is reported at the place of the text.
    others = (
        problem
        for name, problem in resolved.problems.items()
        if name not in missing.missing_variables
    )
    missing.problems = (*missing.problems, *others)
    raise missing
