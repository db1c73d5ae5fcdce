"""Calls of tools and flows, and the tools about runs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from plait.agents.tool_access import schema_errors
from plait.app.toolbox import call_until_stopped, toolbox
from plait.core.errors import InputError, PlaitError, TrustError
from plait.core.hints import Final
from plait.core.records import dataclass, replace
from plait.core.values import Json
from plait.engine.stop import StopSignal
from plait.mcp.catalog import RESERVED, Catalog, Exposed
from plait.mcp.protocol import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    STRICT_ARGUMENTS,
    WITH_TASKS,
    ProtocolError,
    Request,
)
from plait.mcp.questions import (
    REPEAT,
    Answers,
    change_question,
    is_change,
    may_trust,
    once_question,
)
from plait.mcp.results import create_task_result, failure, run_result, success
from plait.mcp.run_jobs import CANCELLED, OnProgress, ResumeWords, RunJob, RunJobs, RunState
from plait.tools.call import call_tool

MOST_WAIT: Final = 600.0
"""Seconds that one call may wait for a run."""
TASK_AFTER: Final = 1.0
"""Seconds after which a call of a flow becomes a task, if the client takes tasks."""
_BAD_ARGUMENTS: Final = frozenset({"schema-violation", "parameter"})
"""Codes of errors about the arguments of a call."""

_RUN: Final[Mapping[str, Json]] = {
    "type": "string",
    "minLength": 1,
    "description": "the id of the run, or its beginning",
}
_SECONDS: Final[Mapping[str, Json]] = {
    "type": "number",
    "minimum": 0,
    "maximum": MOST_WAIT,
    "description": "how long to wait; then the call answers with what is known",
}
_PATHS: Final[Mapping[str, Json]] = {"type": "array", "items": {"type": "string"}}


def _tool(
    name: str, what: str, properties: Mapping[str, Json], *, needed: str, read_only: bool = False
) -> dict[str, Json]:
    hints: dict[str, Json] = {"readOnlyHint": read_only, "destructiveHint": False}
    return {
        "name": name,
        "title": name,
        "description": what,
        "inputSchema": {
            "type": "object",
            "properties": dict(properties),
            "required": [needed],
            "additionalProperties": False,
        },
        "annotations": {"title": name, **hints, "openWorldHint": not read_only},
    }


RUN_TOOLS: Final = {
    str(tool["name"]): tool
    for tool in (
        _tool(
            "plait_run_start",
            "Start a flow and return its run id at once. Wait for it with plait_run_wait.",
            {
                "flow": {"type": "string", "description": "the name of the tool that is the flow"},
                "params": {"type": "object", "description": "its parameters"},
            },
            needed="flow",
        ),
        _tool(
            "plait_run_status",
            "Say how a run stands. The run id is the one that a flow returned.",
            {"run": _RUN},
            needed="run",
            read_only=True,
        ),
        _tool(
            "plait_run_wait",
            "Wait for the end of a run and return its result. A run that ended with the server "
            "or the machine is resumed; no recorded step runs again.",
            {"run": _RUN, "seconds": _SECONDS},
            needed="run",
        ),
        _tool(
            "plait_run_cancel",
            "Stop a run and its processes. What is done stays recorded.",
            {"run": _RUN},
            needed="run",
        ),
        _tool(
            "plait_run_resume",
            "Continue a run that was stopped or has failed; recorded steps are not repeated.",
            {
                "run": _RUN,
                "seconds": _SECONDS,
                "repeat": {**_PATHS, "description": "steps with an unknown end to run again"},
                "done": {**_PATHS, "description": "steps with an unknown end to count as done"},
                "accept_changes": {
                    "type": "boolean",
                    "description": "the flow was edited on purpose: run what has changed",
                },
                "inputs": {
                    "type": "object",
                    "description": "secret inputs, which are not recorded",
                },
            },
            needed="run",
        ),
    )
}
assert RUN_TOOLS.keys() == RESERVED


@dataclass(frozen=True, slots=True)
class Call:
    """A call by a client."""

    request: Request
    name: str
    arguments: Mapping[str, Json]
    stop: StopSignal
    on_progress: OnProgress | None
    answers: Answers | None
    """The user of the client; None: the client does not ask its user."""


class Calls:
    """Performs `tools/call`."""

    def __init__(self, catalog: Catalog, runs: RunJobs, answer_within: float) -> None:
        self._catalog = catalog
        self._runs = runs
        self._answer_within = answer_within
        """Seconds after which a call of a flow answers with the run id."""

    def tools(self, revision: str) -> list[Json]:
        """What `tools/list` answers."""
        entries = self._catalog.entries()
        listed: list[Json] = [_tool_record(one, revision) for one in entries]
        if any(one.is_flow for one in entries):
            listed += RUN_TOOLS.values()
        return listed

    def call(
        self,
        request: Request,
        stop: StopSignal,
        on_progress: OnProgress | None = None,
        answers: Answers | None = None,
    ) -> dict[str, Json]:
        name = request.text("name")
        call = Call(request, name, request.mapping("arguments"), stop, on_progress, answers)
        try:
            try:
                return self._perform(call)
            except TrustError as error:
                if not may_trust(self._catalog.project, error, answers):
                    raise
            return self._perform(call)
        except InputError as error:
            if request.revision == STRICT_ARGUMENTS and error.code in _BAD_ARGUMENTS:
                raise ProtocolError(INVALID_PARAMS, f"{name}: {error}") from None
            return failure(str(error))
        except PlaitError as error:
            return failure(str(error))

    def continue_run(
        self, state: RunState, words: ResumeWords, answers: Answers | None, *, asked: bool = False
    ) -> RunJob | None:
        """Resume a run; what it asks is asked first.

        None: it stays as it is, since the client gave no answer; or another process works on it by now.
        `asked`: the client itself asks to resume it, and gets an error that names what is missing.
        """
        unknown = [one for one in state.questions if one not in (*words.repeat, *words.done)]
        if unknown and answers is not None:
            questions = {path: once_question(state, path) for path in unknown}
            given = answers.ask(list(questions.values()))
            if given is None:
                return None
            again = [path for path, one in questions.items() if given[one.key] == REPEAT]
            done = [path for path in unknown if path not in again]
            words = replace(words, repeat=(*words.repeat, *again), done=(*words.done, *done))
        elif unknown and not asked:
            return None
        try:
            return self._resume(state, words)
        except TrustError as error:
            if not may_trust(self._catalog.project, error, answers):
                raise
            return self._resume(state, words)
        except InputError as error:
            if error.code == "secret-input":
                fix = "call plait_run_resume with them in 'inputs'"
                raise InputError(error.what, fix=fix, code=error.code) from None
            if answers is None or words.accept_changes or not is_change(error):
                raise
            question = change_question(state, error)
            given = answers.ask([question])
            if not given or given[question.key] is not True:
                raise
        return self._resume(state, replace(words, accept_changes=True))

    def _resume(self, state: RunState, words: ResumeWords) -> RunJob | None:
        """None: another process, such as the server of another client, has just resumed it."""
        try:
            return self._runs.resume(state.run, words)
        except InputError as error:
            if error.code != "run-locked" or self._runs.state(state.run).status == "interrupted":
                raise
            return None

    def _perform(self, call: Call) -> dict[str, Json]:
        if call.name in RUN_TOOLS:
            _require_no_task(call)
            return self._call_run_tool(call)
        exposed = self._find(call.name)
        if exposed.is_flow:
            return self._call_flow(exposed, call)
        _require_no_task(call)
        return self._call_tool(exposed, call)

    def _find(self, name: str) -> Exposed:
        exposed = self._catalog.get(name)
        if exposed is None:
            raise ProtocolError(INVALID_PARAMS, f"Unknown tool: {name[:200]}")
        return exposed

    def _call_tool(self, exposed: Exposed, call: Call) -> dict[str, Json]:
        perform = partial(call_until_stopped, stop=call.stop)
        tools = toolbox(self._catalog.project)
        result = call_tool(tools, exposed.id, call.arguments, perform=perform)
        if result.success:
            return success(result.data)
        return failure((result.error or "it does not say why").rstrip(), result.data)

    def _call_flow(self, flow: Exposed, call: Call) -> dict[str, Json]:
        _require_fitting(flow.name, call.arguments, flow.record()["inputSchema"])
        job = self._runs.start(flow, call.arguments)
        if call.request.asks_for_task:
            if call.on_progress is not None:
                job.listen(call.on_progress)  # its token is valid as long as the task is
            return create_task_result(call.request, self._runs.state(job.run))
        within = self._answer_within
        if call.request.offers_tasks:
            within = min(within, TASK_AFTER)
        with job.listening(call.on_progress):
            job.wait(within, call.stop)
        if call.stop.is_set():
            job.stop.ask(call.stop.why or CANCELLED)
        state = self._runs.state(job.run)
        if call.request.offers_tasks and state.status == "running":
            return create_task_result(call.request, state)
        return run_result(state)

    def _call_run_tool(self, call: Call) -> dict[str, Json]:
        arguments = call.arguments
        _require_fitting(call.name, arguments, RUN_TOOLS[call.name]["inputSchema"])
        if call.name == "plait_run_start":
            return self._start(arguments)
        state = self._runs.state(str(arguments["run"]))
        match call.name:
            case "plait_run_status":
                return run_result(state)
            case "plait_run_cancel":
                return success(self._runs.cancel(state.run).record())
            case "plait_run_wait":
                if self._runs.job(state.run) is None and state.goes_on:
                    self.continue_run(state, ResumeWords(), call.answers)
            case _:
                words = ResumeWords(
                    arguments.get("repeat", ()),
                    arguments.get("done", ()),
                    arguments.get("accept_changes", False),
                    arguments.get("inputs"),
                )
                self.continue_run(state, words, call.answers, asked=True)
        seconds = arguments.get("seconds", self._answer_within)
        return run_result(self._runs.wait(state.run, seconds, call.stop, call.on_progress))

    def _start(self, arguments: Mapping[str, Json]) -> dict[str, Json]:
        flow, params = self._find(str(arguments["flow"])), arguments.get("params") or {}
        if not flow.is_flow:
            what = f"'{flow.name}' is a tool, not a flow"
            raise InputError(what, fix=f"call {flow.name}", code="not-a-flow")
        _require_fitting(flow.name, params, flow.record()["inputSchema"])
        return success({"run": self._runs.start(flow, params).run, "status": "running"})


def _tool_record(one: Exposed, revision: str) -> dict[str, Json]:
    record = one.record()
    if one.is_flow and revision == WITH_TASKS:
        record["execution"] = {"taskSupport": "optional"}
    return record


def _require_no_task(call: Call) -> None:
    if call.request.asks_for_task:
        what = f"{call.name} cannot be called as a task: only flows can"
        raise ProtocolError(METHOD_NOT_FOUND, what)


def _require_fitting(name: str, arguments: Mapping[str, Json], schema: Json) -> None:
    wrong = schema_errors(dict(arguments), schema)
    if wrong:
        what = f"the arguments of '{name}' do not fit its schema: {'; '.join(wrong)}"
        raise InputError(what, code="schema-violation")
