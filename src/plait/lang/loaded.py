"""What every kind of flow file becomes: a program, and what it was given.

A workflow, a graph, a directive and an ensemble differ in what their files look like and in how
they choose the next step.  They are run, recorded, resumed, limited and shown by the same code,
which knows only this.
"""

from __future__ import annotations

from collections.abc import Mapping

from plait.core.hints import TYPE_CHECKING, Any
from plait.core.records import dataclass, field
from plait.core.source import Span
from plait.core.values import Json
from plait.engine.hooks import Hook
from plait.engine.limits import NO_LIMITS, Limits
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
    """How a flow is loaded.  A language ignores what it does not have, such as profiles."""

    project: str | None = None
    """None: the folder of the file."""
    profile: str | None = None
    strict: bool | None = None
    """None: as the file says."""
    lenient: bool = False
    """For a dry run, in which not all names are known: it is not strict, whatever the file says,
    and has the fingerprints of a flow that is.
    """
    max_parallel: int | None = None
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    known: tuple[Mapping[str, Json], FlowEnvironment] | None = field(default=None, repr=False)
    """Inputs and environment that another process has resolved."""

    @property
    def is_strict(self) -> bool:
        """In a language whose files do not say it."""
        return bool(self.strict) and not self.lenient

    def project_of(self, source: FlowText) -> str:
        return source.folder if self.project is None else self.project


@dataclass(frozen=True, slots=True)
class LoadedFlow:
    """A flow that can run, and what it was given."""

    program: Program
    path: str
    project: str
    parameters: Mapping[str, Json]
    declared: Mapping[str, Parameter]
    environment: FlowEnvironment = field(default=NO_ENVIRONMENT, repr=False)
    tool_uses: Mapping[str, Span] = field(default_factory=dict)
    """The tools that its steps name, and where."""
    calls: tuple[ToolCall, ...] = ()
    """Those of its steps, with the parameters as they are written."""
    warnings: tuple[Finding, ...] = ()
    strict: bool = False
    timeout: float | None = None
    kind: str = "workflow"
    """workflow, graph, directive or ensemble; or chat, which is a directive that somebody talks
    with.
    """
    limits: Limits = NO_LIMITS
    hooks: tuple[Hook, ...] = ()
    """Those of its file; `app` adds those of the user and of the project."""
    durability: str = "normal"
    backend: str = "local"
    shared: bool = False
    """The project is at the same place on every host that performs items."""
    shipped_files: tuple[str, ...] = ()
    """Patterns for files of the project that go with the items, where it is not."""
    stall_timeout: float | None = None
    """Seconds that a cluster's scheduler or a worker may give no sign of life."""
    wait_for_workers: float | None = None
    """Seconds that a cluster may have no worker."""
    allow_outside: bool = False
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    derived_secrets: frozenset[str] = field(default=frozenset(), repr=False)
    """What its steps make of secrets, as far as that is known before."""

    def scope(self, run: str, *, sources: Sources | None = None, started: str = "") -> Scope:
        """The names with which a run of the flow begins."""
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
        """Where computed values come from; `run`, `clock` and their like are those of `Sources`."""
        environ = self.environment.environ(self.environ)
        return Sources(self.project, environ=environ, allow_outside=self.allow_outside, **more)

    def process_env(self) -> dict[str, str]:
        """What its processes find in their environment, besides that of Plait."""
        return self.environment.process_env()

    def secret_texts(self) -> list[str]:
        """What has to be masked wherever it appears."""
        return sorted(self.derived_secrets.union(secret_texts(self.environment, self.parameters)))
