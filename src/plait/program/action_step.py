"""One step of a workflow: an action with condition, retry, capture, handlers and validation.

    when → action (retry, timeout) → capture → on_exit_code (0) → validate → on_success
                     └ failed → on_exit_code, on_failure → retry, continue, or fail

The value is the result of the action: `{output, stderr, exit_code, duration}`, plus `captures` if
handlers captured something. The captures of the step itself are computed from that value, so a
replayed step captures the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from plait.core.errors import InputError, InternalError, PlaitError, TrustError
from plait.core.hints import TYPE_CHECKING, Protocol, TypeAlias
from plait.core.records import dataclass, field, replace
from plait.core.source import Source, Span
from plait.core.values import NOT_KNOWN, UNDEFINED, Json, Unknown, reveal_text, text
from plait.engine.outcome import (
    INCOMPLETE,
    LIMIT,
    Failed,
    Failure,
    Outcome,
    Skip,
    Skipped,
    StepError,
    Succeeded,
    require_success,
    with_handler_failure,
)
from plait.engine.paths import (
    ON_FAILURE,
    RUN,
    again_name,
    exit_code_name,
    join_path,
    numbered_name,
    parent_path,
)
from plait.engine.perform import StepContext, act, act_async
from plait.engine.replay import can_continue_after, replay_unless_failed
from plait.engine.step import DEFAULT_POLICY, Composite, FunctionAction, Policy, RetryScope, Step
from plait.engine.unknown_results import UNKNOWN_RESULT, is_unknown_result
from plait.program.capture import (
    ATTEMPT,
    LOST,
    UNPARSABLE,
    Capture,
    OutputPart,
    attempt_number,
    by_id,
    capture_parts,
    capture_values,
    require_complete_output,
    result_facts,
    scope_after,
)
from plait.program.ports import FileReader, Files, Tracking
from plait.program.step_list import StepList as Steps
from plait.scope.frames import DATA_ENV_FRAME, GIVEN
from plait.template.compiled import missing_names
from plait.template.nodes import ContextPlaceholder, Path
from plait.template.sinks import as_sealed_envs, is_own_text, render_text
from plait.template.template import Template

if TYPE_CHECKING:
    from plait.engine import step as step_module
    from plait.engine.journal import StepRecord
    from plait.engine.perform import Runnable
    from plait.engine.plan_log import PlanLog
    from plait.program.git_changes import ChangeCheck
    from plait.program.validate import Validation
    from plait.scope import Scope


@dataclass(frozen=True, slots=True)
class ItemPlaceholder:
    path: Path
    placeholder: ContextPlaceholder
    source: Source

    @property
    def span(self) -> Span:
        return Span(self.source, self.placeholder.start, self.placeholder.end)


def find_item_placeholders(*holders: object) -> tuple[ItemPlaceholder, ...]:
    """The fields of an item that templates, or records of templates, use without a default."""
    templates = (template for holder in holders for template in _templates(holder))
    return tuple(
        placeholder for template in templates for placeholder in _template_placeholders(template)
    )


def note_missing_fields(placeholders: Iterable[ItemPlaceholder], ctx: StepContext) -> None:
    for placeholder in placeholders:
        if ctx.scope.lookup(placeholder.path) is UNDEFINED:
            place = str(placeholder.span)
            stays = f"'${{{placeholder.path}}}' stays unfilled: an item has no such field"
            ctx.run.events.note_once(place, ctx.path, f"{place}: {stays}")


def require_item_fields(placeholders: Iterable[ItemPlaceholder], scope: Scope) -> None:
    """Raise MissingNamesError for item fields that a strict run would not find."""
    missing = [
        (one.source, one.placeholder) for one in placeholders if _is_surely_missing(one.path, scope)
    ]
    if missing:
        raise missing_names(missing, scope.names, {})


def _is_surely_missing(path: Path, scope: Scope) -> bool:
    """Whether a mapping lacks the key. If a parent is not a mapping, only the run may know its
    value.
    """
    if scope.lookup(path) is not UNDEFINED:
        return False
    parent = scope.lookup(Path(path.root))
    for key in path.keys:
        if not isinstance(parent, Mapping):
            return False
        if key not in parent:
            return True
        parent = parent[key]
    return False


def _templates(holder: object) -> Iterator[Template]:
    if isinstance(holder, Template):
        yield holder
    else:
        held = (getattr(holder, name, None) for name in getattr(holder, "__slots__", ()))
        yield from (one for one in held if isinstance(one, Template))


def _template_placeholders(template: Template) -> Iterator[ItemPlaceholder]:
    for leaf in template.leaves():
        for placeholder in leaf.compiled.parts:
            if (
                isinstance(placeholder, ContextPlaceholder)
                and (path := _item_path(placeholder)) is not None
            ):
                yield ItemPlaceholder(path, placeholder, leaf.source)


def _item_path(placeholder: ContextPlaceholder) -> Path | None:
    if (
        placeholder.bare
        or placeholder.default is not None
        or placeholder.required is not None
        or len(placeholder.alternatives) != 1
    ):
        return None
    (only,) = placeholder.alternatives
    path = only.origin
    # A format or filter may define a result for missing fields.
    if only.formats or placeholder.filters or not isinstance(path, Path):
        return None
    return path if path.root == "item" and path.keys else None


Action: TypeAlias = "step_module.Action | Composite | Runnable"
"""The action of a step. It returns its result: output, stderr, exit_code, duration; unknown in a
dry run.
"""


class Expression(Protocol):
    """A compiled `when`."""

    @property
    def source(self) -> Source: ...

    def holds(self, scope: Scope) -> bool: ...

    def is_unknown(self, scope: Scope) -> bool: ...


@dataclass(frozen=True, slots=True)
class FailureHandler:
    """`on_failure`: the steps to run after a failure, and whether the flow fails."""

    steps: Steps
    attempts: int = 0
    """How many times the step is retried after the handler; 0: a successful handler is enough."""
    fails_anyway: bool | None = None
    """`fail_workflow`; None: the flow fails only if the retries fail."""


@dataclass(frozen=True, slots=True)
class ActionStep(Composite):
    name: str
    """The last part of its path: the id or name that the author wrote, or its number."""
    kind: str
    title: str
    fingerprint: str
    action: Action | None
    """The action; None if the step only validates."""
    policy: Policy = DEFAULT_POLICY
    """The policy of the step; if it has handlers, they apply to the action alone, see `attempts`.
    """
    when: Expression | None = None
    env: Mapping[str, Template] = field(default_factory=dict)
    working_dir: Template | None = None
    capture: Capture | None = None
    output_parts: tuple[OutputPart, ...] = ()
    """`capture_outputs` of setup."""
    change_check: ChangeCheck | None = None
    output_file: Template | None = None
    on_failure: FailureHandler | None = None
    on_success: Steps | None = None
    on_exit_code: Mapping[int, Steps] = field(default_factory=dict)
    validation: Validation | None = None
    continue_on_error: bool = False
    strict: bool = False
    strict_when_run: bool = False
    """True if the flow is strict, but this is a dry run, which is lenient."""
    facts: Mapping[str, Json] = field(default_factory=dict)
    """`step.*`: name, id, index."""
    known_by_id: bool = False
    """True if a template reads its result by id: `${test-step.exit_code}`."""
    attempts: Policy | None = None
    """The policy of the action of a step with handlers."""
    action_fingerprint: str = ""
    """The fingerprint of the action without handlers; empty: that of the step."""
    item_placeholders: tuple[ItemPlaceholder, ...] = ()
    """Item fields that its templates use without a default."""

    def __post_init__(self) -> None:
        if not self.strict:
            placeholders = find_item_placeholders(
                self.action, *self.env.values(), self.working_dir, self.output_file
            )
            object.__setattr__(self, "item_placeholders", placeholders)
        if self.attempts is None and not self.has_no_handlers:
            # Retrying the whole step as well would turn three attempts into nine, with handlers in
            # between. The failure is recorded, because a resumed run continues after it with the
            # handlers.
            is_handled = bool(self.on_failure or self.on_exit_code)
            object.__setattr__(self, "attempts", replace(self.policy, keep_failure=is_handled))
            object.__setattr__(self, "policy", DEFAULT_POLICY)
        if self.continue_on_error and not self.policy.keep_failure:
            # The flow has continued after this failure, and so does a resumed run.
            object.__setattr__(self, "policy", replace(self.policy, keep_failure=True))

    @property
    def capture_name(self) -> str:
        return self.capture.name if self.capture else ""

    @property
    def children(self) -> Sequence[Step]:
        handler = [self.on_failure.steps] if self.on_failure else []
        success = [self.on_success] if self.on_success else []
        return [
            *(_action_steps(self.action) if self.has_no_handlers else (ActionAttempt(self, RUN),)),
            *handler,
            *success,
            *self.on_exit_code.values(),
            *(self.validation.children if self.validation else ()),
        ]

    async def run(self, ctx: StepContext) -> Json:
        ctx = ctx.with_scope(ctx.scope.frame("step", step=self._names(ctx)))
        if self.when is not None:
            plan_log = ctx.run.plan_log
            if plan_log is not None and self.when.is_unknown(ctx.scope):
                return await self._plan_conditional(self.when.source.text, ctx, plan_log)
            if not self.when.holds(ctx.scope):
                raise Skip("its condition does not hold")
        ctx = self._prepare_context(ctx)
        return await self.run_action(ctx) if self.has_no_handlers else self._run_with_handlers(ctx)

    async def _plan_conditional(self, when: str, ctx: StepContext, plan: PlanLog) -> Json:
        """Plan a step whose condition only the run knows: show it with the condition, never fail."""
        before = len(plan.steps)
        try:
            ctx = self._prepare_context(ctx)
            if self.has_no_handlers:
                value = await self.run_action(ctx)
            else:
                value = self._run_with_handlers(ctx)
        except (InternalError, TrustError):
            raise
        except (StepError, PlaitError) as error:
            failure = (
                error.failure
                if isinstance(error, StepError)
                else Failure(ctx.run.secrets.mask(str(error)))
            )
            # the plan already contains a failure of an inner step
            if failure.path in ("", ctx.path):
                plan.add_failure(ctx, self.kind, self.title, failure.message)
            value = self._unknown_result()
        plan.add_condition(before, when)
        return value

    def _unknown_result(self) -> dict[str, Json]:
        """The result of a step that only a run knows."""
        return {**UNKNOWN_RESULT, "captures": dict.fromkeys(self.may_capture(), NOT_KNOWN)}

    def _check_item_fields(self, ctx: StepContext) -> None:
        """Report missing item fields. A dry run is lenient, but must fail where a strict run fails."""
        if self.strict_when_run:
            require_item_fields(self.item_placeholders, ctx.scope)
        else:
            note_missing_fields(self.item_placeholders, ctx)

    def _names(self, ctx: StepContext) -> dict[str, Json]:
        own = {**self.facts, "path": ctx.path, "attempt": ctx.attempt}
        tracking = ctx.run.shared(Tracking)
        if not tracking.is_on and not tracking.unknown:
            return {"step": own}
        from plait.program.git_changes import names_of_step

        names = names_of_step(ctx)
        return {**names, "step": {**names["step"], **own}}

    def output_variables(self, value: Json) -> dict[str, Json]:
        """The variables that the step sets for later steps."""
        if not isinstance(value, dict) or "exit_code" not in value:
            return {}
        inner = value.get("captures")
        names = (
            dict.fromkeys(self._handlers_capture(), NOT_KNOWN) if is_unknown_result(value) else {}
        )
        if isinstance(inner, dict):
            names |= inner
        if self.known_by_id:
            names |= by_id(str(self.facts["id"]), value)
        if self.capture is not None:
            names |= capture_values(self.capture, value)
        return names

    def may_capture(self) -> Iterator[str]:
        """Yield all variables that the step may set, whatever its outcome."""
        if self.known_by_id:
            yield str(self.facts["id"])
        if self.capture is not None:
            yield self.capture.name
        yield from getattr(self.action, "captures", ())
        yield from (part.name for part in self.output_parts)
        if self.change_check is not None:
            yield from self.change_check.captures
        yield from self._handlers_capture()

    def _handlers_capture(self) -> Iterator[str]:
        """Yield the captures of handlers, which may or may not run."""
        handler = () if self.on_failure is None else (self.on_failure.steps,)
        for steps in (*handler, self.on_success, *self.on_exit_code.values()):
            yield from (
                () if steps is None else (name for one in steps.steps for name in one.may_capture())
            )
        if self.validation is not None:
            yield from self.validation.captures

    # ── the parts of `run` ───────────────────────────────────────────────

    def _prepare_context(self, ctx: StepContext) -> StepContext:
        """Return the context with the directory and environment of the step; check item fields."""
        if self.env:
            ctx = with_env(ctx, self.env, strict=self.strict)
        if self.working_dir is not None:
            directory = self._directory(self.working_dir, ctx)
            ctx = replace(ctx, scope=ctx.scope.at(directory), directory=directory)
        if self.item_placeholders:
            self._check_item_fields(ctx)
        return ctx

    def _directory(self, named: Template, ctx: StepContext) -> str:
        from os.path import join, normpath

        rendered = named.render_checked(ctx.scope, strict=self.strict)
        directory = normpath(join(ctx.directory, text(rendered)))
        if isinstance(rendered, Unknown):
            return directory  # in a dry run the directory is not used
        if "\0" not in directory and ctx.run.services.get(FileReader).is_inside(directory):
            return directory
        written = next((leaf.source for leaf in named.leaves()), None)
        raise InputError(
            "working_dir is outside the project",
            None if written is None else written.outer_span(0, len(written.text)),
            "name a folder of the project",
            code="file-outside",
        )

    async def run_action(self, ctx: StepContext) -> dict[str, Json]:
        """Execute the action and return its result, with all that the options add to it."""
        if self.action is None:
            return {"output": None, "exit_code": 0}
        try:
            if self.change_check or self.output_parts or ctx.run.shared(Tracking).is_on:
                value = self._run_with_options(self.action, ctx)
            else:
                value = await act_async(self.action, ctx)
        except StepError as error:
            self._keep_output(ctx, error.failure)
            if ctx.attempt == 1:
                raise
            raise StepError(_with_attempt(ctx.attempt, error.failure)) from None
        assert isinstance(value, dict), "an action returns a map"
        if self.output_file is not None:
            self._write_output_file(self.output_file, ctx, value)
        if value and ctx.attempt > 1:
            value = {**value, ATTEMPT: ctx.attempt}
        if value and self.capture is not None and self.capture.can_fail(value):
            # A failed capture fails here, so the action can be retried.
            capture_values(self.capture, value)
        return value

    def _run_with_options(self, action: Action, ctx: StepContext) -> dict[str, Json]:
        """Execute an action with change check, captured parts and tracked changes."""
        execute: Callable[[], dict[str, Json]] = partial(act, action, ctx)
        if self.change_check is not None:
            execute = partial(self.change_check.apply, execute, ctx)
        if self.output_parts:
            execute = partial(capture_parts, self.output_parts, execute)
        if ctx.run.shared(Tracking).is_on:
            from plait.program.git_changes import track_changes

            execute = partial(track_changes, ctx, execute)
        return execute()

    def _keep_output(self, ctx: StepContext, failure: Failure) -> None:
        """Write what the action printed before it failed. An error here must not hide the failure."""
        if self.output_file is None:
            return
        if not isinstance(failure.output, Mapping) or "output" not in failure.output:
            return  # it failed before it printed anything
        try:
            self._write_output_file(self.output_file, ctx, failure.output)
        except (StepError, PlaitError) as error:
            what = error.failure.message if isinstance(error, StepError) else str(error)
            ctx.run.events.note(
                ctx.path, f"output_file of a step that failed could not be written: {what}"
            )

    def _write_output_file(
        self, file: Template, ctx: StepContext, value: Mapping[str, Json]
    ) -> None:
        """Write the output right after the action: handlers and checks may read the file."""
        act(FunctionAction(partial(self._write_output, file, value)), ctx)

    def _run_with_handlers(self, ctx: StepContext) -> dict[str, Json]:
        outcome, ctx = self._attempt_action(ctx, RUN)
        handled: dict[str, Json] = {}
        for attempt in range(1, (self.on_failure.attempts if self.on_failure else 0) + 1):
            if not isinstance(outcome, Failed) or outcome.failure.exit_code in self.on_exit_code:
                break
            if outcome.failure.kind == LIMIT:
                break  # a reached limit stays reached
            done, ctx = self._handle(ctx, outcome.failure, numbered_name(ON_FAILURE, attempt))
            handled = _add_captures(handled, done)
            before = attempt_number(outcome.failure.as_result())
            outcome, ctx = self._attempt_action(ctx, again_name(attempt))
            outcome = _after_attempts(before, outcome)
        match outcome:
            case Failed(failure):
                value = self._recover(ctx, _with_captures(failure, handled))
            case Succeeded(value):
                assert isinstance(value, dict)
                value = self._after_success(ctx, _add_captures(value, handled))
            case Skipped(why):
                raise Skip(why)
        return value

    def _attempt_action(self, ctx: StepContext, name: str) -> tuple[Outcome, StepContext]:
        """Perform the action as its own step; return its outcome and the context after it."""
        attempt = ActionAttempt(self, name)
        since = replay_unless_failed(ctx, name, self._must_repeat_action)
        if ctx.can_replay and not since.can_replay and self._has_failed_inside(ctx, name):
            # The action and its step failed: retry the action, and continue with what it recorded
            # inside.
            return ctx.perform_next(replace(attempt, is_retry=True))
        return since.perform_next(attempt)

    def _has_failed_inside(self, ctx: StepContext, name: str) -> bool:
        path = join_path(ctx.path, name)
        known = None if self.retry_scope is None else ctx.run.journal.step(path)
        if known is None or not isinstance(known.outcome, Failed):
            return False
        return can_continue_after(known.outcome.failure, path)

    def _must_repeat_action(self, known: StepRecord, failure: Failure) -> bool:
        """Whether a recorded action must run again, because the step failed after it.

        Not if only a handler or check must run again, and never for an at-most-once action.
        """
        if self.attempts is not None and self.attempts.at_most_once:
            return False
        has_changed = known.fingerprint != (self.action_fingerprint or self.fingerprint)
        return has_changed or (failure.kind == INCOMPLETE and self._only_action_can_fix())

    def _only_action_can_fix(self) -> bool:
        """Whether only the action itself can fix what the check finds."""
        return self.validation is not None and self.validation.on_incomplete is None

    @property
    def retry_scope(self) -> RetryScope | None:
        """A retry repeats no answered tool call or model turn of an agent."""
        return getattr(self.action, "retry_scope", None)

    def is_plain_in(self, ctx: StepContext) -> bool:
        """Does it wait only for a process: no pause, no question, no model, no server?"""
        policy = self.policy
        return (
            self.has_no_handlers
            and policy.retry.attempts == 1
            and policy.timeout is None
            and not policy.at_most_once
            and not (self.change_check or self.output_parts or self.output_file)
            and (self.action is None or _is_plain_action(self.action, ctx))
        )

    @property
    def has_no_handlers(self) -> bool:
        return not (self.on_failure or self.on_exit_code or self.on_success or self.validation)

    def _after_success(self, ctx: StepContext, value: dict[str, Json]) -> dict[str, Json]:
        value, ctx = self._run_followup(ctx, value, exit_code_name(0), self.on_exit_code.get(0))
        if self.validation is not None:
            checked, after = self.validation.run(ctx.with_scope(self._after(ctx.scope, value)))
            value, ctx = _add_captures(value, checked), after.with_scope(ctx.scope)
        # `on_success` may publish something, so the check runs first.
        return self._run_followup(ctx, value, "on_success", self.on_success)[0]

    def _run_followup(
        self, ctx: StepContext, value: dict[str, Json], name: str, steps: Steps | None
    ) -> tuple[dict[str, Json], StepContext]:
        if steps is None:
            return value, ctx
        outcome, ctx = ctx.perform_next(steps, scope=self._after(ctx.scope, value), name=name)
        return _add_captures(value, require_success(outcome)), ctx

    def _recover(self, ctx: StepContext, failure: Failure) -> dict[str, Json]:
        """Run the handlers of a failed action and return the result, or raise StepError."""
        code, handler = failure.exit_code, self.on_failure
        if code is not None and (steps := self.on_exit_code.get(code)) is not None:
            done, _ = self._run_handler(ctx, steps, failure, exit_code_name(code))
            return _add_captures(failure.as_result(), done)
        if handler is None:
            raise StepError(failure)
        if handler.attempts:  # it was handled and retried, but still fails
            if handler.fails_anyway is False:
                return failure.as_result()
            raise StepError(failure)
        done, _ = self._handle(ctx, failure, ON_FAILURE)
        if handler.fails_anyway:
            raise StepError(_with_captures(failure, done))
        return _add_captures(failure.as_result(), done)

    def _handle(self, ctx: StepContext, failure: Failure, name: str) -> tuple[Json, StepContext]:
        assert self.on_failure is not None
        return self._run_handler(ctx, self.on_failure.steps, failure, name)

    def _run_handler(
        self, ctx: StepContext, steps: Steps, failure: Failure, name: str
    ) -> tuple[Json, StepContext]:
        outcome, ctx = ctx.perform_next(steps, scope=self._failure_scope(ctx, failure), name=name)
        if isinstance(outcome, Failed):
            raise StepError(with_handler_failure(failure, steps.name, outcome.failure))
        return require_success(outcome), ctx

    def _failure_scope(self, ctx: StepContext, failure: Failure) -> Scope:
        ended = failure.as_result()
        error = result_facts(ended)
        for name in ("stdout", "success", "duration"):
            error.pop(name, None)
        error |= {
            "message": failure.message,
            "exit_code": failure.exit_code,
            "step": self.title,
            "kind": failure.kind,
        }
        return self._after(ctx.scope, ended).frame("on_failure", phase={"error": error})

    def _after(self, scope: Scope, value: Mapping[str, Json]) -> Scope:
        return scope_after(scope, self, value, self.output_variables(value))

    def _write_output(self, file: Template, value: Mapping[str, Json], ctx: StepContext) -> None:
        path = render_text(file, ctx.scope, strict=self.strict)
        files = ctx.run.services.get(Files)
        stored_file = value.get("output_file")
        if lost := value.get(LOST["output"]):
            why = f"printed too much for output_file: {lost}"
            fix = "let the command itself write the file"
            raise StepError(Failure(f"{why}; {fix}", "capture", output={**value, UNPARSABLE: True}))
        if isinstance(stored_file, str):
            files.copy(stored_file, path, directory=ctx.directory)
            return
        require_complete_output(
            value, "output", use="written to output_file, because secrets must be masked"
        )
        data = text(value.get("output")).encode("utf-8", "surrogateescape")
        files.write(path, data, directory=ctx.directory, mode=None, create_dirs=True)


def with_env(ctx: StepContext, env: Mapping[str, Template], *, strict: bool) -> StepContext:
    """Return a context whose processes and templates see these variables."""
    filled = as_sealed_envs(env, ctx.scope, strict=strict)
    given = {name: value for name, (value, _) in filled.items()}
    ctx.run.secrets.add_derived(secret for _, secrets in filled.values() for secret in secrets)
    scope = ctx.scope
    frames = {name: _frame_name(value, ctx.scope) for name, value in env.items()}
    for label in ("step env", GIVEN, DATA_ENV_FRAME):
        scope = scope.frame(
            label, env={name: given[name] for name in given if frames[name] == label}
        )
    found = {name: reveal_text(value) for name, value in given.items()}
    return replace(ctx, scope=scope, env={**ctx.env, **found})


def _frame_name(value: Template, scope: Scope) -> str:
    """The frame of a variable, depending on the origin of its value."""
    if is_own_text(value, scope, of_author=True):
        return "step env"
    return GIVEN if is_own_text(value, scope) else DATA_ENV_FRAME


@dataclass(frozen=True, slots=True)
class ActionAttempt(Composite):
    """The action of a step as its own step, so handlers and checks can repeat without it."""

    owner: ActionStep
    name: str
    is_retry: bool = False
    """The failure does not count as an outcome: the outcomes that earlier run attempts recorded
    inside stay valid.
    """

    kind = "attempt"

    @property
    def capture_name(self) -> str:
        return self.owner.capture_name

    @property
    def children(self) -> Sequence[Step]:
        return _action_steps(self.owner.action)

    @property
    def title(self) -> str:
        return self.owner.title

    @property
    def fingerprint(self) -> str:
        return self.owner.action_fingerprint or self.owner.fingerprint

    @property
    def policy(self) -> Policy:
        policy = self.owner.attempts or DEFAULT_POLICY
        return replace(policy, keep_failure=False) if self.is_retry else policy

    @property
    def retry_scope(self) -> RetryScope | None:
        return self.owner.retry_scope

    async def run(self, ctx: StepContext) -> dict[str, Json]:
        try:
            return await self.owner.run_action(ctx)
        finally:
            ctx.run.events.copy_title(ctx.path, parent_path(ctx.path))


def _is_plain_action(action: Action, ctx: StepContext) -> bool:
    is_plain = getattr(action, "is_plain_in", None)
    return is_plain is not None and is_plain(ctx)


FIRST = RUN
AGAIN = again_name(0)[:-1]


def _action_steps(action: Action | None) -> Sequence[Step]:
    return tuple(getattr(action, "children", ()))


def _with_attempt(attempt: int, failure: Failure) -> Failure:
    return replace(failure, output={**failure.as_result(), ATTEMPT: attempt})


def _after_attempts(before: int, outcome: Outcome) -> Outcome:
    """Number the attempts from the first, those before a handler included."""
    match outcome:
        case Succeeded(dict() as value) if value:
            return Succeeded({**value, ATTEMPT: before + attempt_number(value)})
        case Failed(failure):
            return Failed(_with_attempt(before + attempt_number(failure.as_result()), failure))
    return outcome


def _with_captures(failure: Failure, handled: Json) -> Failure:
    """Add the captures of handlers: the flow may continue and read them."""
    ended = failure.as_result()
    joined = _add_captures(ended, handled)
    return failure if joined is ended else replace(failure, output=joined)


def _add_captures(value: dict[str, Json], inner: Json) -> dict[str, Json]:
    """Return the result with the captures of handlers."""
    captures = inner.get("captures") if isinstance(inner, dict) else None
    if not captures:
        return value
    assert isinstance(captures, dict)
    mine = value.get("captures")
    return {**value, "captures": {**(mine if isinstance(mine, dict) else {}), **captures}}
