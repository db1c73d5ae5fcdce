"""A document without problems becomes the steps of a flow.

A step is called by its id, else by its number; its fingerprint is what its author
said, and nothing else: with the environment and strictness that reach it, and with
those variables and defaults of the flow that it mentions.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Many

from plait import schema as format
from plait.core.digests import sha256_hex
from plait.core.documents import nodes
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.records import dataclass, field, replace
from plait.core.source import Span
from plait.core.values import Json, Undefined, json_text
from plait.engine.step import DEFAULT_POLICY, Policy
from plait.lang.analysis.mentions import ids_asked_for, names_in, tracked_names, used_map_lists
from plait.lang.analysis.scopes import find_templates
from plait.lang.common import (
    expand_short_step,
    handler_commands,
    parse_capture,
    parse_policy,
    parse_step_when,
    sort_keys,
    step_names,
    step_title,
)
from plait.lang.parameters import convert_value, flow_parameters
from plait.lang.workflow.actions import build_action, with_change_checks
from plait.lang.workflow.compose import Blocks, Calls, ComposedWorkflow
from plait.program.action_step import Action, ActionStep, FailureHandler
from plait.program.block import BlockAction
from plait.program.step_list import StepList as Steps
from plait.program.step_list import join_fingerprints, step_list
from plait.program.workflow import WorkflowProgram
from plait.schema import Fields, fingerprint_data, text_template
from plait.scope import Scope

if TYPE_CHECKING:
    from plait.program.map import Map
    from plait.program.validate import Validation

MENDED_ATTEMPTS: Final = 3
"""So often a step is tried again after an agent that is its handler; to mend is why one asks it."""


@dataclass(frozen=True, slots=True)
class CompileContext:
    """What reaches a step from around it."""

    blocks: Blocks
    env: Mapping[str, nodes.Node] = field(default_factory=dict)
    """The env of its phase, if no step around it has taken that already."""
    taken: Mapping[str, nodes.Node] = field(default_factory=dict)
    """The same if one has."""
    reaching: tuple[tuple[str, nodes.Node], ...] = ()
    """What the steps that it is inside of say for all that is in them, by the name of the field."""
    forgiving: bool = False
    """A failure does not matter: the handler of a handler."""

    def below(self) -> CompileContext:
        """The place of whatever is inside a step: what that was given is not given again, over its
        own.
        """
        return replace(self, env={}, taken=self.of_phase)

    @property
    def of_phase(self) -> Mapping[str, nodes.Node]:
        return self.env or self.taken

    def inside(self, fields: Fields) -> CompileContext:
        """The place of the steps that a step with steps of its own performs."""
        older = fields.child("metadata")
        told = [(name, fields.get(name)) for name in ("with", "env", "working_dir")]
        told.append(("env", older.get("env") if older else None))
        return replace(
            self,
            reaching=(*self.reaching, *((name, node) for name, node in told if node is not None)),
        )


FOLLOWING: Final = frozenset({"on_failure", "on_success", "on_exit_code", "validate"})
"""What a step says of what follows its action."""


def _without(node: nodes.Node, names: frozenset[str]) -> nodes.Node:
    if not names or not isinstance(node, nodes.Mapping):
        return node
    kept = [entry for entry in node.entries if str(entry[0].value) not in names]
    return replace(
        node,
        entries=tuple(
            (key, _without(inner, names) if str(key.value) == "test" else inner)
            for key, inner in kept
        ),
    )


class WorkflowCompiler:
    """Makes steps of nodes that have no problems."""

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
        project: str | None = None,
        environ: Mapping[str, str] | None = None,
        calls: Calls | None = None,
    ) -> None:
        self.project = project
        self.environ = environ or {}
        self.calls = Calls() if calls is None else calls
        self.called: list[ComposedWorkflow] = []
        """Whatever its steps call, and what that calls."""
        self.made: frozenset[str] = frozenset()
        """Secrets of these files, and what their steps make of them."""
        self.tracks: frozenset[str] = frozenset()
        """What workflows that it calls ask for of the changes that a run makes."""
        self.flow = flow
        self.said = fields
        self.scope = scope
        self.strict = strict
        self.lenient = lenient
        self.max_parallel = max_parallel
        self.tools: dict[str, Span] = {}
        """Those that are named, and where that is done first."""
        self.fields = find_templates(flow.document, "workflow", blocks=flow.blocks).fields
        self.asked_ids = ids_asked_for(self.fields, flow)
        """Those of steps that something asks for as names."""
        self.watches = False
        """Some step asks for the changes that it makes."""
        profiles = dict(fields.entries("profiles"))
        chosen = profiles.get(profile) if profile is not None else None
        env = fields.get("env")
        self.head = _Head(flow.document, fields, scope)
        self.around: Json = [
            env.data() if env else {},
            chosen.data() if chosen else {},
            *self.head.declarations_in(env, chosen),
        ]
        """What the whole flow says that reaches every step."""

    def workflow(self, name: str) -> WorkflowProgram:
        place = CompileContext(self.flow.blocks)
        document = self.flow.document
        steps = document.items if isinstance(document, nodes.Sequence) else None
        if self.said.has("steps"):
            steps = self.said.items("steps")
        fields = self.fields
        flow = WorkflowProgram(
            name,
            steps=None if steps is None else self.steps("steps", steps, place),
            setup=self.setup(place),
            map=self.compile_map(place),
            reduce=self.phase("reduce", place),
            merge=self.phase("merge", place),
            map_lists=frozenset(used_map_lists(fields, document)),
        )
        tracks = {*self.tracks, *tracked_names(fields), *(("step",) if self.watches else ())}
        return replace(flow, tracks=frozenset(tracks))

    # ── phases ───────────────────────────────────────────────────────────

    def phase(self, key: str, place: CompileContext) -> Steps | None:
        node = self.said.get(key)
        if node is None:
            return None
        if isinstance(node, nodes.Sequence):
            return self.steps(key, node.items, place)
        said = self.said.child(key)
        assert said is not None
        place = replace(place, env=dict(said.variables("env")))
        return self.steps(key, said.items("steps"), place, timeout=said.seconds("timeout"))

    def setup(self, place: CompileContext) -> Steps | None:
        steps = self.phase("setup", place)
        said = self.said.child("setup")
        if steps is None or said is None or not said.has("capture_outputs"):
            return steps
        from plait.lang.workflow.setup_captures import add_setup_captures

        return add_setup_captures(steps, said)

    def compile_map(self, place: CompileContext) -> Map | None:
        said = self.said.child("map")
        if said is None:
            return None
        from plait.lang.workflow.map import compile_map

        return compile_map(self, said, place)

    def steps(
        self,
        name: str,
        items: Many[nodes.Node],
        place: CompileContext,
        *,
        kind: str = "phase",
        title: str = "",
        timeout: float | None = None,
    ) -> Steps:
        names = step_names(items)
        works = [
            self.work(node, called, at, place)
            for at, (node, called) in enumerate(zip(items, names, strict=True))
        ]
        policy = DEFAULT_POLICY if timeout is None else Policy(timeout=timeout)
        return step_list(name, works, kind=kind, title=title, policy=policy)

    # ── one step ─────────────────────────────────────────────────────────

    def work(self, node: nodes.Node, name: str, index: int, place: CompileContext) -> ActionStep:
        if isinstance(node, nodes.Scalar):
            node = expand_short_step(node)
        assert isinstance(node, nodes.Mapping)
        said = Fields("step", node, self.scope)
        older = said.child("metadata")
        own = said.optional_flag("strict")
        told_strict = self.strict if own is None else own
        strict = told_strict and not (own is None and self.lenient)
        inner = place.below()
        kind, action = build_action(self, said, inner, strict)
        env = {
            **place.env,
            **(dict(older.variables("env")) if older else {}),
            **dict(said.variables("env")),
        }
        title = said.text("name") or said.text("id") or step_title(said, kind)
        return ActionStep(
            name=name,
            kind=kind,
            title=title,
            fingerprint=self.fingerprint(node, place, told_strict, action),
            action_fingerprint=self.fingerprint(
                node, place, told_strict, action, without=FOLLOWING
            ),
            action=with_change_checks(self, action, said, older),
            policy=parse_policy(said, older),
            when=parse_step_when(said),
            env={name: text_template(value) for name, value in env.items()},
            working_dir=said.template("working_dir"),
            capture=parse_capture(said),
            output_file=said.template("output_file"),
            on_failure=self.handler(said, inner),
            on_success=self.following(said.get("on_success"), "on_success", inner),
            on_exit_code={
                int(code): steps
                for code, after in said.entries("on_exit_code")
                if (steps := self.following(after, f"on_exit_code:{code}", inner)) is not None
            },
            validation=self.validation(said, inner),
            continue_on_error=place.forgiving
            or said.flag("continue_on_error")
            or bool(older and older.flag("continue_on_error")),
            strict=strict,
            strict_when_run=told_strict and not strict,
            known_by_id=said.text("id") in self.asked_ids and not said.has("outputs"),
            facts={"name": said.text("name") or title, "id": said.text("id") or "", "index": index},
        )

    def fingerprint(
        self,
        node: nodes.Node,
        place: CompileContext,
        strict: bool,
        action: Action | None,
        *,
        without: frozenset[str] = frozenset(),
    ) -> str:
        node = _without(node, without)
        said = fingerprint_data(node, format.STEP)
        phase = {name: value.data() for name, value in place.of_phase.items()}
        used = self.head.declarations_in(node, *place.of_phase.values())
        told = [sort_keys(said), self.around, phase, strict, *used, *self.reaching(place)]
        own = sha256_hex(json_text(told).encode("utf-8", "surrogatepass"))[:16]
        block = (
            [step.fingerprint for step in action.children]
            if isinstance(action, BlockAction)
            else []
        )
        if isinstance(node, nodes.Mapping) and node.get("workflow") is not None:
            block = [getattr(action, "fingerprint", "")]
        return join_fingerprints([own, *block]) if block else own

    def reaching(self, place: CompileContext) -> list[Json]:
        """What is said by the steps that one is inside of, and what that mentions; [] if it is
        nothing.
        """
        if not place.reaching:
            return []
        said: list[Json] = [[name, sort_keys(node.data())] for name, node in place.reaching]
        return [said, *self.head.declarations_in(*(node for _, node in place.reaching))]

    # ── what follows it ──────────────────────────────────────────────────

    def following(
        self,
        node: nodes.Node | None,
        name: str,
        place: CompileContext,
        *,
        timeout: float | None = None,
    ) -> Steps | None:
        """One step, or a list of steps."""
        if node is None:
            return None
        items = node.items if isinstance(node, nodes.Sequence) else (node,)
        return self.steps(name, items, place, kind="handler", timeout=timeout)

    def handler(self, fields: Fields, place: CompileContext) -> FailureHandler | None:
        older = fields.child("test")
        if not fields.has("on_failure") and older is not None:
            fields = older
        node = fields.get("on_failure")
        inner = fields.child("on_failure")
        if inner is not None:
            return self.handler_map(inner, place)
        if node is None or (isinstance(node, nodes.Scalar) and node.value is False):
            return None
        if isinstance(node, nodes.Scalar) and node.value is True:
            return FailureHandler(
                self.steps("on_failure", (), place, kind="handler"), fails_anyway=False
            )
        steps = self.following(node, "on_failure", place)
        assert steps is not None
        is_agent = isinstance(node, nodes.Scalar) and str(node.value).startswith("/")
        return FailureHandler(steps, MENDED_ATTEMPTS if is_agent else 0)

    def handler_map(self, fields: Fields, place: CompileContext) -> FailureHandler:
        forgiving = (
            fields.flag("continue_on_error")
            or fields.optional_flag("handler_failure_fatal") is False
        )
        place = replace(place, forgiving=place.forgiving or forgiving)
        steps = self.steps(
            "on_failure",
            handler_commands(fields),
            place,
            kind="handler",
            timeout=fields.seconds("timeout"),
        )
        return FailureHandler(steps, _attempts(fields), fields.optional_flag("fail_workflow"))

    def validation(self, fields: Fields, place: CompileContext) -> Validation | None:
        node = fields.get("validate")
        if node is None:
            return None
        from plait.program.validate import Validation

        inner = fields.child("validate")
        if inner is None:
            check = self.following(node, "check", place)
            assert check is not None
            return Validation(check)
        check = self.steps(
            "check", handler_commands(inner), place, kind="check", timeout=inner.seconds("timeout")
        )
        completes = inner.child("on_incomplete")
        steps = self.completing(inner, completes, place)
        attempts = inner.integer("max_attempts")
        if attempts is None:
            attempts = completes.integer("max_attempts") if completes else 2
        fails = inner.flag("fail_workflow") and (
            completes is None or completes.flag("fail_workflow")
        )
        return Validation(
            check,
            threshold=float(inner.number("threshold") or 0),
            result_file=inner.template("result_file"),
            schema=None if (schema := inner.get("expected_schema")) is None else schema.data(),
            on_incomplete=steps,
            attempts=2 if attempts is None else attempts,
            fails=fails,
        )

    def completing(
        self, fields: Fields, completes: Fields | None, place: CompileContext
    ) -> Steps | None:
        if completes is None:
            return self.following(fields.get("on_incomplete"), "on_incomplete", place)
        timeout = completes.seconds("timeout")
        return self.steps(
            "on_incomplete", handler_commands(completes), place, kind="handler", timeout=timeout
        )


class _Head:
    """What steps may mention and the head of the flow says: `vars`, and defaults that nobody
    overrode.

    What is given is no matter of the file: it is kept with the run.
    """

    def __init__(self, document: nodes.Node, fields: Fields, scope: Scope) -> None:
        self._vars = dict(fields.entries("vars"))
        self._defaults = {
            name: parameter.default
            for name, parameter in flow_parameters(document).items()
            if not isinstance(parameter.default, Undefined)
            and convert_value(parameter, parameter.default) == scope.lookup(name)
        }

    def declarations_in(self, *places: nodes.Node | None) -> list[Json]:
        """What stands there, of each name that is mentioned, directly or by a variable; [] if none
        is.
        """
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


def _attempts(fields: Fields) -> int:
    """How often a step is tried again after its handler."""
    attempts = fields.integer("max_attempts")
    if attempts is not None:
        return attempts
    if fields.has("retry_original"):
        return 1 if fields.flag("retry_original") else 0
    is_agent = not fields.has("steps") and (fields.has("claude") or fields.has("agent"))
    return MENDED_ATTEMPTS if is_agent else 0
