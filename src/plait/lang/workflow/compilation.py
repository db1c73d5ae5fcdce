"""The shared parts of the workflow compiler: options, context, and collected data."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Many

from plait.core.documents import nodes
from plait.core.hints import TYPE_CHECKING
from plait.core.records import dataclass, field, replace
from plait.core.values import Json, Undefined
from plait.lang.analysis.mentions import ids_asked_for
from plait.lang.analysis.references import names_in
from plait.lang.analysis.scopes import find_templates
from plait.lang.common import sort_keys
from plait.lang.parameters import convert_value, flow_parameters
from plait.lang.workflow.compose import Blocks, Calls, ComposedWorkflow
from plait.schema import Fields
from plait.scope import Scope

if TYPE_CHECKING:
    from plait.core.source import Span
    from plait.program.phases import Phases
    from plait.program.step_list import StepList


@dataclass(frozen=True, slots=True)
class CompileContext:
    """The context that a step inherits from the places that contain it."""

    blocks: Blocks
    env: Mapping[str, nodes.Node] = field(default_factory=dict)
    """The env of its phase, if no outer step has applied it."""
    taken: Mapping[str, nodes.Node] = field(default_factory=dict)
    """The env of its phase, if an outer step has applied it."""
    reaching: tuple[tuple[str, nodes.Node], ...] = ()
    """Fields of outer steps that affect the steps inside them, by name."""
    forgiving: bool = False
    """Failures are ignored: it is in a handler that may fail."""

    def below(self) -> CompileContext:
        """The context inside a step: the env of the phase is applied once, not again over its
        own.
        """
        return replace(self, env={}, taken=self.of_phase)

    @property
    def of_phase(self) -> Mapping[str, nodes.Node]:
        return self.env or self.taken

    def inside(self, fields: Fields) -> CompileContext:
        """The context of the steps that a step contains."""
        older = fields.child("metadata")
        shared = [(name, fields.get(name)) for name in ("with", "env", "working_dir")]
        shared.append(("env", older.get("env") if older else None))
        return replace(
            self,
            reaching=(*self.reaching, *((name, node) for name, node in shared if node is not None)),
        )


class Compilation:
    """One workflow file that is being compiled.

    Actions, maps and called files use it to compile the steps inside them. `WorkflowCompiler`
    implements the methods that are only declared here.
    """

    def __init__(
        self,
        flow: ComposedWorkflow,
        fields: Fields,
        scope: Scope,
        *,
        strict: bool,
        lenient: bool = False,
        profile: str | None,
        max_parallel: int | None,
        keep_going: bool = False,
        project: str | None = None,
        environ: Mapping[str, str] | None = None,
        calls: Calls | None = None,
    ) -> None:
        self.project = project
        self.environ = environ or {}
        self.calls = Calls() if calls is None else calls
        self.called: list[ComposedWorkflow] = []
        """The files that its steps call, directly or not."""
        self.derived_secrets: frozenset[str] = frozenset()
        """Texts with secrets in them that called files contain or make."""
        self.tracks: frozenset[str] = frozenset()
        """Names of changes that called files use."""
        self.flow = flow
        self.fields = fields
        self.scope = scope
        self.strict = strict
        self.lenient = lenient
        self.max_parallel = max_parallel
        self.keep_going = keep_going
        self.tools: dict[str, Span] = {}
        """The tools that steps name, each with its first place."""
        self.templates = find_templates(flow.document, "workflow", blocks=flow.blocks).fields
        self.asked_ids = ids_asked_for(self.templates, flow)
        """Ids of steps that something uses as names."""
        self.watches = False
        """A step uses the changes that it makes."""
        profiles = dict(fields.entries("profiles"))
        chosen = profiles.get(profile) if profile is not None else None
        env = fields.get("env")
        self.head = Declarations(flow.document, fields, scope)
        self.around: Json = [
            env.data() if env else {},
            chosen.data() if chosen else {},
            *self.head.used_in(env, chosen),
        ]
        """Data of the head that is part of every fingerprint."""

    def phases(self) -> Phases:
        """The phases of the whole file."""
        # `WorkflowCompiler` implements it, so its helpers need not import that class
        raise NotImplementedError

    def steps(
        self,
        name: str,
        items: Many[nodes.Node],
        context: CompileContext,
        *,
        kind: str = "phase",
        title: str = "",
        timeout: float | None = None,
    ) -> StepList:
        """A list of steps."""
        # `WorkflowCompiler` implements it, so its helpers need not import that class
        raise NotImplementedError

    def for_called_file(
        self, flow: ComposedWorkflow, fields: Fields, scope: Scope, path: str
    ) -> Compilation:
        """The same compilation for a file that a step of this one calls."""
        return type(self)(
            flow,
            fields,
            scope,
            strict=self.strict or fields.flag("strict"),
            lenient=self.lenient,
            profile=None,
            max_parallel=self.max_parallel,
            keep_going=self.keep_going,
            project=self.project,
            environ=self.environ,
            calls=self.calls.inside(path),
        )

    def reaching(self, context: CompileContext) -> list[Json]:
        """Data of outer steps for the fingerprint of a step; [] if there is none."""
        if not context.reaching:
            return []
        outer: list[Json] = [[name, sort_keys(node.data())] for name, node in context.reaching]
        return [outer, *self.head.used_in(*(node for _, node in context.reaching))]


class Declarations:
    """The `vars` of a head, and its defaults that no input replaced.

    They are part of the fingerprint of a step that uses them.  Inputs are not: a run records them.
    """

    def __init__(self, document: nodes.Node, fields: Fields, scope: Scope) -> None:
        self._vars = dict(fields.entries("vars"))
        self._defaults = {
            name: parameter.default
            for name, parameter in flow_parameters(document).items()
            if not isinstance(parameter.default, Undefined)
            and convert_value(parameter, parameter.default) == scope.lookup(name)
        }

    def used_in(self, *places: nodes.Node | None) -> list[Json]:
        """The declaration of each name that is used, directly or by a variable; [] if none is."""
        if not (self._vars or self._defaults):
            return []
        found: dict[str, Json] = {}
        waiting = [node for node in places if node is not None]
        while waiting:
            for name in names_in(waiting.pop()):
                if name in found:
                    continue
                if (node := self._vars.get(name)) is not None:
                    found[name] = node.data()
                    waiting.append(node)
                elif name in self._defaults:
                    found[name] = self._defaults[name]
        return [sort_keys(found)] if found else []
