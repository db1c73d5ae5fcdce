"""A run without a world: fakes that steps get through parameters, and short ways to build steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from plait.adapters.local import LocalBackend
from plait.agents.messages import (
    ModelRequest,
    ModelResponse,
    OnText,
    Provider,
    TokenUsage,
    ToolOffer,
)
from plait.agents.ports import Models, ToolCatalog
from plait.app.api import compile
from plait.app.hooks import build_hooks
from plait.core.errors import InputError
from plait.core.records import dataclass, field
from plait.core.source import Source
from plait.core.values import Json
from plait.engine.budgets import Budgets
from plait.engine.context import RunContext, Secrets, Services, new_run_context
from plait.engine.event_bus import EventBus, Mask, Watch
from plait.engine.hook_port import NO_HOOKS, Hooks
from plait.engine.journal import Journal, MemoryJournal
from plait.engine.limits import Budget
from plait.engine.outcome import Failed, Failure, Outcome, StepError
from plait.engine.perform import StepContext, perform
from plait.engine.plan_log import PlanLog
from plait.engine.replay import Replay
from plait.engine.step import Policy, Step
from plait.engine.stop import StopSignal
from plait.lang.loaded import LoadedFlow
from plait.program.action_step import ActionStep
from plait.program.actions.tool import call_tool_step
from plait.program.capture import Capture, Format
from plait.program.ports import (
    FileReader,
    Files,
    Http,
    OnOutput,
    Processes,
    ProcessResult,
    Results,
    Subflow,
    ToolChecks,
    Tools,
)
from plait.program.step_list import StepList as Steps
from plait.program.step_list import step_list
from plait.program.worktrees.ports import Worktrees
from plait.scope import Scope
from plait.template.shell.binding import BoundScript
from plait.template.template import Template
from plait.tools.call import ToolResult
from plait.tools.code_params import NO_CODE, CodeParams
from plait.tools.invocation import PrimitiveResult, RequestCall


@dataclass(frozen=True, slots=True)
class Finished:
    """How a fake process ended."""

    stdout: bytes = b""
    stderr: bytes = b""
    exit_code: int = 0
    signal: int | None = None
    duration: float = 0.25
    cpu_time: float = 0.0
    peak_rss: int = 0
    is_truncated: bool = False
    stdout_truncated: bool = False
    stdout_file: str | None = None
    stderr_file: str | None = None
    stdout_lost: str = ""
    stderr_lost: str = ""


def printed(text: str, *, exit_code: int = 0, stderr: str = "") -> Finished:
    return Finished(text.encode(), stderr.encode(), exit_code)


@dataclass(slots=True)
class FakeServices:
    """Answers by functions that a test gives, and remembers what was asked of it."""

    on_shell: Callable[[str], Finished] = lambda _: Finished()
    on_call: Callable[[str, Mapping[str, Json]], ToolResult] | None = None
    on_request: Callable[[RequestCall], PrimitiveResult] | None = None
    files: dict[str, bytes] = field(default_factory=dict)
    flows: dict[str, Callable[[Mapping[str, Json]], Subflow]] = field(default_factory=dict)
    kept: dict[str, Json] = field(default_factory=dict)
    once: frozenset[str] = frozenset()
    model: Provider | None = None
    top: str = "/project"
    asked: list[Any] = field(default_factory=list)

    async def shell(
        self,
        bound: BoundScript,
        *,
        shell: str,  # noqa: ARG002
        cwd: str,  # noqa: ARG002
        env: Mapping[str, str],
        more_env: Mapping[str, str],
        stdin: bytes,  # noqa: ARG002
        timeout: float | None,
        stop: StopSignal,  # noqa: ARG002
        on_output: OnOutput | None = None,  # noqa: ARG002
        trace: tuple[tuple[str, str], ...] = (),  # noqa: ARG002
    ) -> ProcessResult:
        self.asked.append({"shell": bound.shown, "env": {**env, **more_env}, "timeout": timeout})
        return self.on_shell(bound.shown)

    def is_process(self, tool_id: str) -> bool:  # noqa: ARG002
        return False

    async def call(
        self,
        tool_id: str,
        params: Mapping[str, Json],
        *,
        timeout: float | None,
        on_output: OnOutput | None = None,  # noqa: ARG002
        trace: tuple[tuple[str, str], ...] = (),  # noqa: ARG002
    ) -> ToolResult:
        self.asked.append({"tool": tool_id, "params": dict(params), "timeout": timeout})
        assert self.on_call is not None
        return self.on_call(tool_id, params)

    def find_subflow(self, tool_id: str, params: Mapping[str, Json]) -> Subflow | None:
        return self.flows[tool_id](params) if tool_id in self.flows else None

    def require_valid_call(self, tool_id: str, params: Mapping[str, Json]) -> None:
        """Whatever is called here is right."""

    def offers(self, patterns: Sequence[str], *, ask_servers: bool = True) -> tuple[ToolOffer, ...]:  # noqa: ARG002
        return ()

    def code(self, tool_id: str) -> CodeParams:  # noqa: ARG002 - no tool here reads code
        return NO_CODE

    def is_once(self, tool_id: str) -> bool:
        return tool_id in self.once

    def digest(self, tool_id: str) -> str | None:
        return None if tool_id in self.flows else f"digest of {tool_id}"

    def recall(self, key: str) -> Json:
        return self.kept.get(key)

    def keep(self, key: str, value: Json) -> None:
        self.kept[key] = value

    def request(self, call: RequestCall) -> PrimitiveResult:
        self.asked.append(call)
        assert self.on_request is not None
        return self.on_request(call)

    def read(self, path: str, *, directory: str) -> bytes:
        if path not in self.files:
            raise InputError(f"there is no file '{path}'", directory, code="no-file")
        return self.files[path]

    def write(
        self, path: str, data: bytes, *, directory: str, mode: int | None, create_dirs: bool
    ) -> str:
        self.asked.append({"write": path, "mode": mode, "create_dirs": create_dirs})
        self.files[path] = data
        return f"{directory}/{path}"

    def copy(self, source: str, path: str, *, directory: str) -> str:
        self.files[path] = Path(source).read_bytes()
        return f"{directory}/{path}"

    def is_inside(self, directory: str) -> bool:
        return f"{directory}/".startswith(f"{self.top}/")

    def lines(
        self,
        bound: BoundScript,
        *,
        cwd: str,  # noqa: ARG002
        env: Mapping[str, str],  # noqa: ARG002
        timeout: float | None,  # noqa: ARG002
        stop: StopSignal,  # noqa: ARG002
    ) -> Iterator[bytes]:
        yield self.on_shell(bound.shown).stdout

    def git(
        self, args: Sequence[str], *, cwd: str, env: Mapping[str, str], stdin: bytes = b""
    ) -> bytes:
        raise AssertionError(f"nobody asked for git: {args} {cwd} {env} {stdin!r}")

    def at(self, directory: str, env: Mapping[str, str]) -> FakeServices:  # noqa: ARG002
        return self

    def provider(self, name: str | None) -> Provider | None:
        self.asked.append({"provider": name})
        return self.model


@dataclass(slots=True)
class FakeModel:
    text: str = "fine"
    usage: TokenUsage = TokenUsage(2, 1, cost=0.5)
    calls: list[ModelRequest] = field(default_factory=list)
    name: str = "fake"
    fingerprint: str = "fake"

    def ask(
        self,
        request: ModelRequest,
        *,
        timeout: float | None,  # noqa: ARG002
        stop: StopSignal,  # noqa: ARG002
        on_text: OnText | None = None,  # noqa: ARG002
    ) -> ModelResponse:
        self.calls.append(request)
        return ModelResponse(self.text, usage=self.usage, model="m-1")

    def price(self, model: str | None, usage: TokenUsage) -> float | None:  # noqa: ARG002
        return usage.cost or 0.0


class MaskedBy(Secrets):
    """Masks as a test says."""

    def __init__(self, mask: Mask) -> None:
        super().__init__()
        self._mask = mask

    @property
    def is_empty(self) -> bool:
        return False

    def mask(self, text: str) -> str:
        return self._mask(super().mask(text))


LOOKS: tuple[type, ...] = (ToolCatalog, ToolChecks, FileReader)
PORTS: tuple[type, ...] = (*LOOKS, Processes, Files, Http, Results, Tools, Models)


def services_of(fakes: object, *, is_dry: bool = False, **more: object) -> Services:
    """One fake for all ports, in a dry run for those that only look; more by their names."""
    ports = dict.fromkeys(LOOKS if is_dry else PORTS, fakes)
    return Services({**ports, **{globals()[name]: more[name] for name in more}})


def new_run(
    fakes: FakeServices | None = None,
    journal: Journal | None = None,
    *,
    folder: str = "",
    dry_run: bool = False,
    loaded: LoadedFlow | None = None,
    budget: Budget | None = None,
    watchers: Iterable[Watch] = (),
    mask: Mask | None = None,
    stop: StopSignal | None = None,
    full_durability: bool = False,
    random: Random | None = None,
    workspaces: Worktrees | None = None,
    hooks: Hooks = NO_HOOKS,
    **replaying: Any,
) -> RunContext:
    """A run whose steps meet fakes; `loaded`: with the hooks and limits of a flow."""
    journal = journal or MemoryJournal()
    secrets = Secrets() if mask is None else MaskedBy(mask)
    plan_log = PlanLog(secrets.mask) if dry_run else None
    replay = Replay("r1", journal, **replaying)
    budgets = Budgets(
        journal,
        budget or hooks.budget,
        first_event=replay.first_event,
        has_hooks=not hooks.is_empty,
    )
    if loaded is not None:
        hooks, budgets = build_hooks(loaded, "r1", journal, replay)
    more = {} if workspaces is None else {"Worktrees": workspaces}
    return new_run_context(
        "r1",
        journal,
        replay=replay,
        secrets=secrets,
        events=EventBus(
            journal, watchers, mask=secrets.mask, full_durability=full_durability, plan_log=plan_log
        ),
        budgets=budgets,
        hooks=hooks,
        services=services_of(fakes or FakeServices(), is_dry=dry_run, **more),
        backend=LocalBackend(),
        stop=stop,
        folder=folder,
        plan_log=plan_log,
        call_tool=call_tool_step,
        random=random,
    )


def turn_of(
    run: RunContext, values: Mapping[str, Json] | None = None, **fields: Any
) -> StepContext:
    return StepContext(run, "", Scope(values), **{"directory": "/project", **fields})


def performed(
    step: Step,
    run: RunContext | None = None,
    values: Mapping[str, Json] | None = None,
    **fields: Any,
) -> Outcome:
    """What becomes of a step in a run of its own."""
    run = run or new_run()
    turn = turn_of(run, values, **fields)
    try:
        return perform(step, turn.child(step))
    finally:
        run.events.close()


def failure_of(outcome: Outcome) -> Failure:
    assert isinstance(outcome, Failed), outcome
    return outcome.failure


def text_of(written: Json) -> Template:
    """A template as a loader makes it."""
    if isinstance(written, str):
        return compile(written, source=Source("flow.yaml", written))
    return compile(written)


@dataclass(slots=True)
class Acting:
    """An action that does what a test says, and counts."""

    answers: Callable[[StepContext], Json] = lambda _: "out"
    ran: list[str] = field(default_factory=list)

    def run(self, ctx: StepContext) -> dict[str, Json]:
        self.ran.append(ctx.path)
        return {"output": self.answers(ctx), "stderr": "", "exit_code": 0, "duration": 0.0}


def saying(written: str) -> Acting:
    """An action whose output is a template."""
    template = text_of(written)
    return Acting(lambda ctx: template.render(ctx.scope))


def failing(
    message: str = "no", *, kind: str = "exit", exit_code: int | None = 1, times: int = 999
) -> Acting:
    """An action that fails so many times, and then is done."""
    left = [times]

    def answer(_: StepContext) -> Json:
        if left[0] <= 0:
            return "at last"
        left[0] -= 1
        raise StepError(Failure(message, kind, exit_code))

    return Acting(answer)


def step(name: str, action: Acting | Any | None, **fields: Any) -> ActionStep:
    given = {"kind": "shell", "title": name, "fingerprint": f"f-{name}", **fields}
    if isinstance(given.get("capture"), str):
        given["capture"] = Capture(given["capture"])
    return ActionStep(name=name, action=action, **given)


def steps(*works: ActionStep, name: str = "flow") -> Steps:
    return step_list(name, works)


def capture(name: str, format: Format = "string", **fields: Any) -> Capture:
    return Capture(name, format, **fields)


def policy(**fields: Any) -> Policy:
    return Policy(**fields)
