"""Runs as tasks: those of revision 2025-11-25, and those of the extension of 2026-07-28.

A task is a run, and the run id is its id, so a task outlives its server and its client.  A client that
asks for a task whose server died resumes the run.
"""

from __future__ import annotations

from collections.abc import Mapping

from plait.core.errors import InputError, PlaitError
from plait.core.hints import Final
from plait.core.values import Json
from plait.engine.stop import StopSignal
from plait.mcp.calls import Calls
from plait.mcp.catalog import Catalog
from plait.mcp.protocol import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    STATELESS,
    TASKS,
    WITH_TASKS,
    ProtocolError,
    Request,
)
from plait.mcp.questions import Answers, InputRequired, SentAnswers
from plait.mcp.results import about_task, failure, run_result, task_record
from plait.mcp.run_jobs import OnProgress, ResumeWords, RunJobs, RunState

FOREVER: Final = 365 * 86400.0
MOST_LISTED: Final = 50
_METHODS: Final = {
    WITH_TASKS: ("tasks/get", "tasks/result", "tasks/list", "tasks/cancel"),
    STATELESS: ("tasks/get", "tasks/update", "tasks/cancel"),
}


def require_task_method(request: Request) -> None:
    """ProtocolError: the revision has no such method, or the client has not offered tasks."""
    if request.method not in _METHODS.get(request.revision, ()):
        what = f"{request.method} does not belong to revision {request.revision}"
        raise ProtocolError(METHOD_NOT_FOUND, what)
    if request.is_stateless and not request.offers_tasks:
        needed: Json = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
        what = f"{request.method} needs the extension {TASKS} in the client's capabilities"
        raise ProtocolError(MISSING_CAPABILITY, what, needed)


class Tasks:
    """Performs `tasks/…`."""

    def __init__(self, catalog: Catalog, runs: RunJobs, calls: Calls) -> None:
        self._catalog = catalog
        self._runs = runs
        self._calls = calls
        self._given: dict[str, dict[str, Json]] = {}
        """By run: answers that came while others are missing, or that declined."""

    def get(self, request: Request) -> dict[str, Json]:
        """How a task stands; a run that was left goes on."""
        state = self._state(request)
        answers: Answers | None = None
        if request.can_be_asked:
            answers = SentAnswers(self._given.get(state.run, {}))
        try:
            state = self._continue_run(state, answers)
        except InputRequired as required:
            record = task_record(request, state, "input_required")
            asked = {"inputRequests": required.requests()} if request.is_stateless else {}
            return {**record, **asked}
        except PlaitError as error:
            return self._end(request, state, failure(str(error)))
        return self._end(request, state, run_result(state))

    def result(
        self,
        request: Request,
        stop: StopSignal,
        on_progress: OnProgress | None,
        answers: Answers | None,
    ) -> dict[str, Json]:
        """Wait for the end of a task; what its run asks is asked now."""
        state = self._state(request)
        try:
            self._continue_run(state, answers)
            result = run_result(self._runs.wait(state.run, FOREVER, stop, on_progress))
        except PlaitError as error:
            result = failure(str(error))
        return {**result, "_meta": about_task(state.run)}

    def update(self, request: Request) -> dict[str, Json]:
        """Take answers to what a run has asked."""
        state = self._state(request)
        given = self._given.setdefault(state.run, {})
        given.update(request.mapping("inputResponses"))
        try:
            self._continue_run(state, SentAnswers(given))
        except InputRequired:
            return {}  # others are missing
        except InputError as error:
            self._given.pop(state.run, None)
            raise ProtocolError(INVALID_PARAMS, str(error)) from None
        if self._runs.job(state.run) is not None:
            self._given.pop(state.run, None)
        return {}

    def list(self, request: Request) -> dict[str, Json]:
        from plait.app import runs as flows

        tasks: list[Json] = []
        for one in flows.flow_runs(self._catalog.project, MOST_LISTED):
            if one.foreign or not self._catalog.has_run(one.file):
                continue
            try:
                state = self._runs.state(one.id)
            except PlaitError:
                continue  # it is just being made, or cannot be read
            status = _status(request, state, run_result(state))
            if state.goes_on:
                status = "input_required" if state.questions else "working"
            tasks.append(task_record(request, state, status))
        return {"tasks": tasks}

    def cancel(self, request: Request) -> dict[str, Json]:
        state = self._state(request)
        if state.status == "running" or state.is_left:
            try:
                state = self._runs.cancel(state.run)
            except PlaitError as error:
                raise ProtocolError(INVALID_PARAMS, str(error)) from None
        elif not request.is_stateless:
            what = f"the task {state.run} has ended: it is {state.status}"
            raise ProtocolError(INVALID_PARAMS, what)
        return {} if request.is_stateless else task_record(request, state, "cancelled")

    def _state(self, request: Request) -> RunState:
        id = request.text("taskId")
        try:
            state = self._runs.state(id)
        except PlaitError as error:
            raise ProtocolError(INVALID_PARAMS, str(error)) from None
        if state.run != id:  # the beginning of an id is no task
            raise ProtocolError(INVALID_PARAMS, f"there is no task '{id[:200]}'")
        return state

    def _continue_run(self, state: RunState, answers: Answers | None) -> RunState:
        """The state of a run that goes on if it can."""
        if self._runs.job(state.run) is None and state.goes_on:
            self._calls.continue_run(state, ResumeWords(), answers)
            return self._runs.state(state.run)
        return state

    def _end(
        self, request: Request, state: RunState, result: Mapping[str, Json]
    ) -> dict[str, Json]:
        status = _status(request, state, result)
        record = task_record(request, state, status)
        if request.is_stateless and status == "completed":
            return {**record, "result": dict(result)}
        return record


def _status(request: Request, state: RunState, result: Mapping[str, Json]) -> str:
    """Of a task whose run asks nothing that the client could answer."""
    if state.status == "running":
        return "working"
    if state.was_cancelled:
        return "cancelled"
    # In the newest revision a result with an error is a result.
    return "failed" if result["isError"] and not request.is_stateless else "completed"
