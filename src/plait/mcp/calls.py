"""Calls of tools and flows, and the tools about runs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from plait.agents.tool_access import schema_errors
from plait.app.toolbox import call_until_stopped, toolbox
from plait.core.errors import InputError, PlaitError
from plait.core.hints import Final
from plait.core.values import Json, text
from plait.engine.event_bus import StopSignal
from plait.mcp.catalog import RESERVED, Catalog, Exposed
from plait.mcp.protocol import INVALID_PARAMS, STRICT_ARGUMENTS, ProtocolError, Request
from plait.mcp.run_jobs import CANCELLED, OnProgress, RunJobs, RunState
from plait.tools.call import call_tool

MOST_WAIT: Final = 600.0
"""Seconds that one call may wait for a run."""
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


class Calls:
    """Performs `tools/call`."""

    def __init__(self, catalog: Catalog, runs: RunJobs, answer_within: float) -> None:
        self._catalog = catalog
        self._runs = runs
        self._answer_within = answer_within
        """Seconds after which a call of a flow answers with the run id."""

    def tools(self) -> list[Json]:
        """What `tools/list` answers."""
        entries = self._catalog.entries()
        listed: list[Json] = [one.record() for one in entries]
        if any(one.is_flow for one in entries):
            listed += RUN_TOOLS.values()
        return listed

    def call(self, request: Request, stop: StopSignal, on_progress: OnProgress | None) -> Json:
        name, arguments = request.text("name"), request.mapping("arguments")
        try:
            if name in RUN_TOOLS:
                return self._call_run_tool(name, arguments, stop, on_progress)
            exposed = self._find(name)
            if not exposed.is_flow:
                return self._call_tool(exposed, arguments, stop)
            return self._call_flow(exposed, arguments, stop, on_progress)
        except InputError as error:
            if request.revision == STRICT_ARGUMENTS and error.code in _BAD_ARGUMENTS:
                raise ProtocolError(INVALID_PARAMS, f"{name}: {error}") from None
            return _failure(str(error))
        except PlaitError as error:
            return _failure(str(error))

    def _find(self, name: str) -> Exposed:
        exposed = self._catalog.get(name)
        if exposed is None:
            raise ProtocolError(INVALID_PARAMS, f"Unknown tool: {name[:200]}")
        return exposed

    def _call_tool(self, exposed: Exposed, arguments: Mapping[str, Json], stop: StopSignal) -> Json:
        perform = partial(call_until_stopped, stop=stop)
        result = call_tool(toolbox(self._catalog.project), exposed.id, arguments, perform=perform)
        if result.success:
            return _success(result.data)
        return _failure((result.error or "it does not say why").rstrip(), result.data)

    def _call_flow(
        self,
        flow: Exposed,
        arguments: Mapping[str, Json],
        stop: StopSignal,
        on_progress: OnProgress | None,
    ) -> Json:
        _require_fitting(flow.name, arguments, flow.record()["inputSchema"])
        job = self._runs.start(flow, arguments)
        with job.listening(on_progress):
            job.wait(self._answer_within, stop)
        if stop.is_set():
            job.stop.ask(stop.why or CANCELLED)
        return _run_result(self._runs.state(job.run))

    def _call_run_tool(
        self,
        name: str,
        arguments: Mapping[str, Json],
        stop: StopSignal,
        on_progress: OnProgress | None,
    ) -> Json:
        _require_fitting(name, arguments, RUN_TOOLS[name]["inputSchema"])
        seconds = arguments.get("seconds", self._answer_within)
        if name == "plait_run_start":
            return self._start(arguments)
        run = str(arguments["run"])
        match name:
            case "plait_run_status":
                return _run_result(self._runs.state(run))
            case "plait_run_wait":
                return _run_result(self._runs.wait(run, seconds, stop, on_progress))
            case "plait_run_cancel":
                return _success(self._runs.cancel(run).record())
        run = self._runs.state(run).run
        job = self._runs.resume(
            run,
            repeat=arguments.get("repeat", ()),
            done=arguments.get("done", ()),
            inputs=arguments.get("inputs"),
        )
        with job.listening(on_progress):
            job.wait(seconds, stop)
        return _run_result(self._runs.state(run))

    def _start(self, arguments: Mapping[str, Json]) -> Json:
        flow, params = self._find(str(arguments["flow"])), arguments.get("params") or {}
        if not flow.is_flow:
            what = f"'{flow.name}' is a tool, not a flow"
            raise InputError(what, fix=f"call {flow.name}", code="not-a-flow")
        _require_fitting(flow.name, params, flow.record()["inputSchema"])
        return _success({"run": self._runs.start(flow, params).run, "status": "running"})


def _require_fitting(name: str, arguments: Mapping[str, Json], schema: Json) -> None:
    wrong = schema_errors(dict(arguments), schema)
    if wrong:
        what = f"the arguments of '{name}' do not fit its schema: {'; '.join(wrong)}"
        raise InputError(what, code="schema-violation")


# ── results ──────────────────────────────────────────────────────────────


def _success(data: Json) -> dict[str, Json]:
    return {**_content(text(data), data), "isError": False}


def _failure(message: str, data: Json = None) -> dict[str, Json]:
    return {**_content(message, data), "isError": True}


def _run_result(state: RunState) -> dict[str, Json]:
    return {**_content("\n".join(state.lines()), state.record()), "isError": state.has_failed}


def _content(shown: str, data: Json) -> dict[str, Json]:
    content: dict[str, Json] = {"content": [{"type": "text", "text": shown}]}
    return {**content, "structuredContent": data} if isinstance(data, dict) else content
