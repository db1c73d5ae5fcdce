"""Compile a workflow without problems to steps.

The name of a step is its id, else its number.  Its fingerprint is made of its text, of the
environment and strictness that it inherits, and of the variables and defaults that it uses.
"""

from __future__ import annotations

from collections.abc import Sequence as Many

from plait import schema
from plait.core.digests import sha256_hex
from plait.core.documents import nodes
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.records import replace
from plait.core.values import json_text
from plait.engine.paths import exit_code_name
from plait.engine.step import DEFAULT_POLICY, Policy
from plait.lang.analysis.mentions import tracked_names, used_map_lists
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
from plait.lang.workflow.actions import build_action, parse_change_check
from plait.lang.workflow.compilation import Compilation, CompileContext
from plait.lang.workflow.setup_captures import add_setup_captures
from plait.program.action_step import Action, ActionStep, FailureHandler
from plait.program.phases import Phases
from plait.program.step_list import BlockAction, join_fingerprints, step_list
from plait.program.step_list import StepList as Steps
from plait.schema import Fields, fingerprint_data, text_template

if TYPE_CHECKING:
    from plait.program.map import Map
    from plait.program.validate import Validation

MENDED_ATTEMPTS: Final = 3
"""The number of retries of a step whose failure handler is an agent."""


FOLLOWING: Final = frozenset({"on_failure", "on_success", "on_exit_code", "validate"})
"""Fields of a step that take effect after its action."""


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


class WorkflowCompiler(Compilation):
    """Compiles nodes without problems to steps."""

    def phases(self) -> Phases:
        context = CompileContext(self.flow.blocks)
        document = self.flow.document
        steps = document.items if isinstance(document, nodes.Sequence) else None
        if self.fields.has("steps"):
            steps = self.fields.items("steps")
        found = Phases(
            steps=None if steps is None else self.steps("steps", steps, context),
            setup=self.setup(context),
            map=self.compile_map(context),
            reduce=self.phase("reduce", context),
            merge=self.phase("merge", context),
            map_lists=frozenset(used_map_lists(self.templates, document)),
        )
        self.tracks |= {*tracked_names(self.templates), *(("step",) if self.watches else ())}
        return found

    # ── phases ───────────────────────────────────────────────────────────

    def phase(self, key: str, context: CompileContext) -> Steps | None:
        node = self.fields.get(key)
        if node is None:
            return None
        if isinstance(node, nodes.Sequence):
            return self.steps(key, node.items, context)
        fields = self.fields.child(key)
        assert fields is not None
        context = replace(context, env=dict(fields.variables("env")))
        return self.steps(key, fields.items("steps"), context, timeout=fields.seconds("timeout"))

    def setup(self, context: CompileContext) -> Steps | None:
        steps = self.phase("setup", context)
        fields = self.fields.child("setup")
        if steps is None or fields is None or not fields.has("capture_outputs"):
            return steps
        return add_setup_captures(steps, fields)

    def compile_map(self, context: CompileContext) -> Map | None:
        fields = self.fields.child("map")
        if fields is None:
            return None
        from plait.lang.workflow.map import compile_map

        return compile_map(self, fields, context)

    def steps(
        self,
        name: str,
        items: Many[nodes.Node],
        context: CompileContext,
        *,
        kind: str = "phase",
        title: str = "",
        timeout: float | None = None,
    ) -> Steps:
        names = step_names(items)
        works = [
            self.action_step(node, called, at, context)
            for at, (node, called) in enumerate(zip(items, names, strict=True))
        ]
        policy = DEFAULT_POLICY if timeout is None else Policy(timeout=timeout)
        return step_list(name, works, kind=kind, title=title, policy=policy)

    # ── one step ─────────────────────────────────────────────────────────

    def action_step(
        self, node: nodes.Node, name: str, index: int, context: CompileContext
    ) -> ActionStep:
        if isinstance(node, nodes.Scalar):
            node = expand_short_step(node)
        assert isinstance(node, nodes.Mapping)
        fields = Fields("step", node, self.scope)
        older = fields.child("metadata")
        own = fields.optional_flag("strict")
        wants_strict = self.strict if own is None else own
        strict = wants_strict and not (own is None and self.lenient)
        inner = context.below()
        kind, action = build_action(self, fields, inner, strict)
        env = {
            **context.env,
            **(dict(older.variables("env")) if older else {}),
            **dict(fields.variables("env")),
        }
        title = fields.text("name") or fields.text("id") or step_title(fields, kind)
        return ActionStep(
            name=name,
            kind=kind,
            title=title,
            fingerprint=self.fingerprint(node, context, wants_strict, action),
            action_fingerprint=self.fingerprint(
                node, context, wants_strict, action, without=FOLLOWING
            ),
            action=action,
            change_check=None if action is None else parse_change_check(self, fields, older),
            policy=parse_policy(fields, older),
            when=parse_step_when(fields),
            env={name: text_template(value) for name, value in env.items()},
            working_dir=fields.template("working_dir"),
            capture=parse_capture(fields),
            output_file=fields.template("output_file"),
            on_failure=self.handler(fields, inner),
            on_success=self.following(fields.get("on_success"), "on_success", inner),
            on_exit_code={
                int(code): steps
                for code, after in fields.entries("on_exit_code")
                if (steps := self.following(after, exit_code_name(code), inner)) is not None
            },
            validation=self.validation(fields, inner),
            continue_on_error=context.forgiving
            or fields.flag("continue_on_error")
            or bool(older and older.flag("continue_on_error")),
            strict=strict,
            strict_when_run=wants_strict and not strict,
            known_by_id=fields.text("id") in self.asked_ids and not fields.has("outputs"),
            facts={
                "name": fields.text("name") or title,
                "id": fields.text("id") or "",
                "index": index,
            },
        )

    def fingerprint(
        self,
        node: nodes.Node,
        context: CompileContext,
        strict: bool,
        action: Action | None,
        *,
        without: frozenset[str] = frozenset(),
    ) -> str:
        node = _without(node, without)
        data = fingerprint_data(node, schema.STEP)
        phase = {name: value.data() for name, value in context.of_phase.items()}
        used = self.head.used_in(node, *context.of_phase.values())
        parts = [sort_keys(data), self.around, phase, strict, *used, *self.reaching(context)]
        own = sha256_hex(json_text(parts).encode("utf-8", "surrogatepass"))[:16]
        block = (
            [step.fingerprint for step in action.children]
            if isinstance(action, BlockAction)
            else []
        )
        if isinstance(node, nodes.Mapping) and node.get("workflow") is not None:
            block = [getattr(action, "fingerprint", "")]
        return join_fingerprints([own, *block]) if block else own

    # ── handlers and checks ──────────────────────────────────────────────────

    def following(
        self,
        node: nodes.Node | None,
        name: str,
        context: CompileContext,
        *,
        timeout: float | None = None,
    ) -> Steps | None:
        """One step, or a list of steps."""
        if node is None:
            return None
        items = node.items if isinstance(node, nodes.Sequence) else (node,)
        return self.steps(name, items, context, kind="handler", timeout=timeout)

    def handler(self, fields: Fields, context: CompileContext) -> FailureHandler | None:
        older = fields.child("test")
        if not fields.has("on_failure") and older is not None:
            fields = older
        node = fields.get("on_failure")
        inner = fields.child("on_failure")
        if inner is not None:
            return self.handler_map(inner, context)
        if node is None or (isinstance(node, nodes.Scalar) and node.value is False):
            return None
        if isinstance(node, nodes.Scalar) and node.value is True:
            return FailureHandler(
                self.steps("on_failure", (), context, kind="handler"), fails_anyway=False
            )
        steps = self.following(node, "on_failure", context)
        assert steps is not None
        is_agent = isinstance(node, nodes.Scalar) and str(node.value).startswith("/")
        return FailureHandler(steps, MENDED_ATTEMPTS if is_agent else 0)

    def handler_map(self, fields: Fields, context: CompileContext) -> FailureHandler:
        forgiving = (
            fields.flag("continue_on_error")
            or fields.optional_flag("handler_failure_fatal") is False
        )
        context = replace(context, forgiving=context.forgiving or forgiving)
        steps = self.steps(
            "on_failure",
            handler_commands(fields),
            context,
            kind="handler",
            timeout=fields.seconds("timeout"),
        )
        return FailureHandler(steps, _attempts(fields), fields.optional_flag("fail_workflow"))

    def validation(self, fields: Fields, context: CompileContext) -> Validation | None:
        node = fields.get("validate")
        if node is None:
            return None
        from plait.program.validate import Validation

        inner = fields.child("validate")
        if inner is None:
            check = self.following(node, "check", context)
            assert check is not None
            return Validation(check)
        check = self.steps(
            "check",
            handler_commands(inner),
            context,
            kind="check",
            timeout=inner.seconds("timeout"),
        )
        completes = inner.child("on_incomplete")
        steps = self.completing(inner, completes, context)
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
            schema=None if (expected := inner.get("expected_schema")) is None else expected.data(),
            on_incomplete=steps,
            attempts=2 if attempts is None else attempts,
            fails=fails,
        )

    def completing(
        self, fields: Fields, completes: Fields | None, context: CompileContext
    ) -> Steps | None:
        if completes is None:
            return self.following(fields.get("on_incomplete"), "on_incomplete", context)
        timeout = completes.seconds("timeout")
        return self.steps(
            "on_incomplete", handler_commands(completes), context, kind="handler", timeout=timeout
        )


def _attempts(fields: Fields) -> int:
    """How many times a step is retried after its failure handler."""
    attempts = fields.integer("max_attempts")
    if attempts is not None:
        return attempts
    if fields.has("retry_original"):
        return 1 if fields.flag("retry_original") else 0
    is_agent = not fields.has("steps") and (fields.has("claude") or fields.has("agent"))
    return MENDED_ATTEMPTS if is_agent else 0
