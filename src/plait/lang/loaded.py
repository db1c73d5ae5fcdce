"""A flow of any language, loaded: its program and its inputs.

The code that runs, records, resumes, limits and shows flows knows only this.
"""

from __future__ import annotations

from collections.abc import Mapping

from plait.core.hints import TYPE_CHECKING, Any, Protocol
from plait.core.records import dataclass, field
from plait.core.source import Span
from plait.core.values import Json
from plait.lang.environment import NO_ENVIRONMENT, FlowEnvironment, secret_texts
from plait.lang.findings import Finding
from plait.lang.parameters import Parameter
from plait.scope import Scope
from plait.scope.computed import Sources
from plait.scope.frames import GIVEN

if TYPE_CHECKING:
    from plait.lang.analysis.tool_calls import ToolCall
    from plait.lang.flow_text import FlowText
    from plait.program.program import Program


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """The options for loading a flow. A language ignores those that it does not support, such
    as profiles.
    """

    project: str | None = None
    """None: the folder of the file."""
    profile: str | None = None
    strict: bool | None = None
    """None: the file decides."""
    lenient: bool = False
    """For a dry run, which does not know all values: the flow is not strict, but has the
    fingerprints of a strict one if its file says so.
    """
    max_parallel: int | None = None
    keep_going: bool = False
    """A failed item of a map stops no other one, whatever the file says."""
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    known: tuple[Mapping[str, Json], FlowEnvironment] | None = field(default=None, repr=False)
    """Inputs and environment that another process has resolved."""

    @property
    def is_strict(self) -> bool:
        """Is a flow strict if its language has no such field?"""
        return bool(self.strict) and not self.lenient

    def project_folder(self, source: FlowText) -> str:
        return source.folder if self.project is None else self.project


@dataclass(frozen=True, slots=True)
class LoadedFlow:
    """A flow that can run, with its inputs."""

    program: Program
    path: str
    project: str
    parameters: Mapping[str, Json]
    declared: Mapping[str, Parameter]
    environment: FlowEnvironment = field(default=NO_ENVIRONMENT, repr=False)
    tool_uses: Mapping[str, Span] = field(default_factory=dict)
    """The tools that its steps name, and where."""
    calls: tuple[ToolCall, ...] = ()
    """The tool calls of its steps, with their parameters as written."""
    warnings: tuple[Finding, ...] = ()
    strict: bool = False
    keep_going: bool = False
    timeout: float | None = None
    durability: str = "normal"
    backend: str = "local"
    shared: bool = False
    """The project has the same path on every host that runs items."""
    shipped_files: tuple[str, ...] = ()
    """Patterns for files of the project to send along, if it is not shared."""
    stall_timeout: float | None = None
    """Seconds after which a silent scheduler or worker of a cluster counts as lost."""
    wait_for_workers: float | None = None
    """Seconds to wait for a cluster without workers."""
    allow_outside: bool = False
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    derived_secrets: frozenset[str] = field(default=frozenset(), repr=False)
    """Texts with secrets in them that its steps will make, as far as they are known."""

    def scope(self, run: str, *, sources: Sources | None = None, started: str = "") -> Scope:
        """The scope of a run before its first step."""
        facts: dict[str, Json] = {
            "name": self.program.name,
            "id": run,
            "run": run,
            "path": self.path,
            "dir": self.project,
            "iteration": 1,
            "start_time": started,
        }
        names = {**self.environment.names(), **self.parameters}
        given = self.environment.given | self.parameters.keys()
        outermost = Scope({}, label="run", sources=sources or self.sources())
        outermost = outermost.frame(
            GIVEN, env={name: names[name] for name in names if name in given}
        )
        own = {name: value for name, value in names.items() if name not in given}
        return outermost.frame("flow", workflow={"workflow": facts}, env=own)

    def sources(self, **more: Any) -> Sources:
        """The sources of computed values; `more` are arguments of `Sources`."""
        environ = self.environment.environ(self.environ)
        return Sources(self.project, environ=environ, allow_outside=self.allow_outside, **more)

    def process_env(self) -> dict[str, str]:
        """The variables that its processes get besides those of Plait."""
        return self.environment.process_env()

    def secret_texts(self) -> list[str]:
        """Every text that is masked wherever it appears."""
        return sorted(self.derived_secrets.union(secret_texts(self.environment, self.parameters)))


class ReadFile(Protocol):
    """The common part of graphs and ensembles after their file is read."""

    @property
    def source(self) -> FlowText: ...
    @property
    def parameters(self) -> Mapping[str, Parameter]: ...
    @property
    def uses(self) -> Mapping[str, Span]: ...
    @property
    def calls(self) -> tuple[ToolCall, ...]: ...
    @property
    def warnings(self) -> tuple[Finding, ...]: ...
    @property
    def timeout(self) -> float | None: ...


def make_flow(
    file: ReadFile,
    program: Program,
    values: Mapping[str, Json],
    options: LoadOptions,
) -> LoadedFlow:
    """The flow of a graph or an ensemble, which have no environment of their own."""
    return LoadedFlow(
        program,
        file.source.path,
        options.project_folder(file.source),
        values,
        file.parameters,
        tool_uses=file.uses,
        calls=file.calls,
        warnings=file.warnings,
        strict=options.is_strict,
        timeout=file.timeout,
        environ=options.environ,
    )
