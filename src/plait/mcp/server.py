"""The server: takes messages, performs requests, answers, and lets clients cancel.

It does not know how messages travel: `take` gets one, and an `Outgoing` sends one.  When the
client leaves, runs are stopped so that they can be resumed, and tools end with their processes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from threading import Condition, Event, Thread
from time import monotonic

from plait.core.errors import PlaitError
from plait.core.hints import TYPE_CHECKING, Final, Protocol
from plait.core.values import Json
from plait.engine.outcome import Interrupted
from plait.engine.stop import StopSignal
from plait.mcp.calls import MOST_WAIT, Calls
from plait.mcp.catalog import Catalog
from plait.mcp.protocol import (
    HANDSHAKES,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    SERVER,
    STATELESS,
    TASKS,
    TOO_MANY,
    WITH_TASKS,
    Id,
    Message,
    ProtocolError,
    Request,
    make_error,
    make_notification,
    make_question,
    make_request,
    make_response,
    message_id,
    parse_message,
)
from plait.mcp.questions import Answers, InputRequired, LiveAnswers, SentAnswers
from plait.mcp.results import about_task
from plait.mcp.run_jobs import (
    CANCELLED,
    SERVER_LEFT,
    OnProgress,
    RunJobs,
    count_ends,
    progress_text,
)
from plait.views.progress import Progress

if TYPE_CHECKING:
    from plait.mcp.tasks import Tasks

ANSWER_WITHIN: Final = 25.0
"""Seconds: less than the minute that many clients wait for a tool."""
MOST_CALLS: Final = 64
"""Requests that are performed at the same time."""
SPARE_CALLS: Final = 16
"""More of them, only for requests that say how things stand, or stop a run."""
_SPARE_METHODS: Final = ("ping", "tasks/get", "tasks/cancel")
_SPARE_TOOLS: Final = ("plait_run_status", "plait_run_cancel")
LEAVE_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.2
"""Between two looks whether a request that waits for its user was cancelled."""
_CACHEABLE: Final = frozenset(
    {
        "server/discover",
        "tools/list",
        "prompts/list",
        "resources/list",
        "resources/templates/list",
        "resources/read",
    }
)

Method = Callable[[Request, StopSignal], Mapping[str, Json]]
Work = Callable[[], None]
"""Performs a request and sends its answer."""


class Outgoing(Protocol):
    """Takes messages to a client.  It never blocks."""

    def send(self, message: Message, *, may_miss: bool = False, about: Id | None = None) -> None:
        """`about`: the request of the client that the message answers or belongs to."""
        ...

    def close(self, seconds: float) -> None: ...


class Server:
    """Serves one client.  Several may share one `runs`; who has made it ends it."""

    def __init__(
        self,
        catalog: Catalog,
        outbox: Outgoing,
        *,
        answer_within: float = ANSWER_WITHIN,
        report_bug: Callable[[Exception], object],
        runs: RunJobs | None = None,
    ) -> None:
        self._outbox = outbox
        self._report_bug = report_bug
        self._runs = runs or RunJobs(catalog, report_bug)
        self._owns_runs = runs is None
        self._calls = Calls(catalog, self._runs, answer_within)
        self._catalog = catalog
        self._session: str | None = None
        """The revision of `initialize`."""
        self._client: Mapping[str, Json] = {}
        self._stops: dict[Id, StopSignal] = {}
        """By id: requests that are being performed."""
        self._performed = 0
        """Requests whose answer is not sent yet."""
        self._asked: dict[str, _Asked] = {}
        """By id: what the client was asked and has not answered."""
        self._numbers = count(1)
        self._task_methods: Tasks | None = None
        self._lock = Condition()
        self._methods: dict[str, Method] = {
            "server/discover": self._discover,
            "ping": self._ping,
            "tools/list": self._list_tools,
            "tools/call": self._call_tool,
            "prompts/list": self._list_prompts,
            "prompts/get": self._get_prompt,
            "resources/list": self._list_resources,
            "resources/templates/list": self._list_templates,
            "resources/read": self._read_resource,
            "tasks/get": self._perform_task_method,
            "tasks/result": self._perform_task_method,
            "tasks/list": self._perform_task_method,
            "tasks/update": self._perform_task_method,
            "tasks/cancel": self._perform_task_method,
        }

    def receive(self, line: bytes | ProtocolError) -> None:
        """Take one message of the client; a request is performed in a thread."""
        work = self.take(line)
        if work is not None:
            Thread(target=work, name="plait-mcp-request", daemon=True).start()

    def take(self, line: bytes | ProtocolError) -> Work | None:
        """Take one message of the client; return what is left to do, in any thread."""
        if isinstance(line, ProtocolError):
            self._outbox.send(make_error(None, line))
            return None
        try:
            message = parse_message(line)
        except ProtocolError as error:
            self._outbox.send(make_error(None, error))
            return None
        if "method" not in message and ("result" in message or "error" in message):
            self._take_answer(message)
            return None
        if "method" in message and "id" not in message:
            self._notice(message)
            return None
        try:
            return self._begin(make_request(message, self._session, self._client))
        except ProtocolError as error:
            id = message_id(message)
            self._outbox.send(make_error(id, error), about=id)
            return None

    def end(self) -> None:
        """Stop everything that runs, and write the last answers."""
        with self._lock:
            stops = list(self._stops.values())
        for stop in stops:
            stop.ask(SERVER_LEFT)
        if self._owns_runs:
            self._runs.end(LEAVE_SECONDS)
        with self._lock:
            self._lock.wait_for(lambda: self._performed == 0, 1.0)
        self._outbox.close(1.0)

    # ── requests ─────────────────────────────────────────────────────────

    def _begin(self, request: Request) -> Work | None:
        if request.method == "initialize":
            self._initialize(request)
            return None
        method = self._methods.get(request.method)
        if method is None:
            what = f"there is no method '{request.method[:200]}' here"
            raise ProtocolError(METHOD_NOT_FOUND, what)
        stop = StopSignal()
        with self._lock:
            if request.id in self._stops:
                what = "another request with this id is being performed"
                raise ProtocolError(INVALID_REQUEST, what)
            if len(self._stops) >= most_calls(request.method, request.params):
                what = f"{MOST_CALLS} requests are being performed: wait for one"
                raise ProtocolError(TOO_MANY, what)
            self._stops[request.id] = stop
            self._performed += 1
        return partial(self._perform, request, method, stop)

    def _perform(self, request: Request, method: Method, stop: StopSignal) -> None:
        try:
            try:
                answer = self._answer(request, method, stop)
            finally:
                with self._lock:
                    del self._stops[request.id]  # with the answer the id is free again
            if stop.why != CANCELLED:  # nobody waits for the answer of a cancelled request
                self._outbox.send(answer, about=request.id)
        finally:
            with self._lock:
                self._performed -= 1
                self._lock.notify_all()

    def _answer(self, request: Request, method: Method, stop: StopSignal) -> Message:
        try:
            result = method(request, stop)
            return make_response(request, result, is_cacheable=request.method in _CACHEABLE)
        except InputRequired as required:
            return make_response(request, required.result(), is_cacheable=False)
        except ProtocolError as error:
            return make_error(request.id, error)
        except PlaitError as error:
            return make_error(request.id, ProtocolError(INTERNAL_ERROR, str(error)))
        except (Interrupted, KeyboardInterrupt):  # a function may raise it, too
            return make_error(request.id, ProtocolError(INTERNAL_ERROR, "it was cancelled"))
        except Exception as bug:
            self._report_bug(bug)
            what = "this is a bug of Plait; standard error says where its traceback is"
            return make_error(request.id, ProtocolError(INTERNAL_ERROR, what))

    def _notice(self, message: Message) -> None:
        params = message.get("params")
        if message["method"] != "notifications/cancelled" or not isinstance(params, dict):
            return  # `notifications/initialized`, and what nobody has to know here
        id = message_id({"id": params.get("requestId")})
        with self._lock:
            stop = self._stops.get(id) if id is not None else None
        if stop is not None:
            stop.ask(CANCELLED)

    # ── methods ──────────────────────────────────────────────────────────

    def _initialize(self, request: Request) -> None:
        if request.is_stateless:
            raise ProtocolError(METHOD_NOT_FOUND, f"revision {STATELESS} has no initialize")
        self._session = request.revision
        self._client = request.mapping("capabilities")
        about = self._about(request)
        result = {"protocolVersion": request.revision, "serverInfo": dict(SERVER), **about}
        self._outbox.send(make_response(request, result, is_cacheable=False), about=request.id)

    def _ping(self, request: Request, _stop: StopSignal) -> Mapping[str, Json]:
        if request.is_stateless:
            raise ProtocolError(METHOD_NOT_FOUND, f"revision {STATELESS} has no ping")
        return {}

    def _discover(self, request: Request, _stop: StopSignal) -> Mapping[str, Json]:
        if not request.is_stateless:
            what = f"server/discover belongs to revision {STATELESS}"
            raise ProtocolError(METHOD_NOT_FOUND, what)
        return {"supportedVersions": [STATELESS, *HANDSHAKES], **self._about(request)}

    def _about(self, request: Request) -> dict[str, Json]:
        can: dict[str, Json] = {"tools": {}, "prompts": {}, "resources": {}}
        if request.is_stateless:
            can["extensions"] = {TASKS: {}}
        elif request.revision == WITH_TASKS:
            can["tasks"] = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
        return {
            "capabilities": can,
            "instructions": f"Tools and flows of the project {self._catalog.project}. A flow that takes "
            "long returns a run id: call plait_run_wait with it. Runs are recorded; one that was "
            "interrupted continues where it stopped.",
        }

    def _list_tools(self, request: Request, _stop: StopSignal) -> Mapping[str, Json]:
        _require_first_page(request)
        return {"tools": self._calls.tools(request.revision)}

    def _call_tool(self, request: Request, stop: StopSignal) -> Mapping[str, Json]:
        answers = self._answers(request, stop)
        return self._calls.call(request, stop, self._progress_sender(request), answers)

    def _perform_task_method(self, request: Request, stop: StopSignal) -> Mapping[str, Json]:
        from plait.mcp.tasks import require_task_method

        require_task_method(request)
        tasks = self._tasks()
        match request.method:
            case "tasks/get":
                return tasks.get(request)
            case "tasks/update":
                return tasks.update(request)
            case "tasks/cancel":
                return tasks.cancel(request)
            case "tasks/list":
                _require_first_page(request)
                return tasks.list(request)
        answers = self._answers(request, stop, request.text("taskId"))
        return tasks.result(request, stop, self._progress_sender(request), answers)

    def _tasks(self) -> Tasks:
        from plait.mcp.tasks import Tasks

        with self._lock:
            if self._task_methods is None:
                self._task_methods = Tasks(self._catalog, self._runs, self._calls)
            return self._task_methods

    def _list_prompts(self, request: Request, _stop: StopSignal) -> Mapping[str, Json]:
        from plait.mcp.prompts import list_prompts

        _require_first_page(request)
        return {"prompts": list_prompts(self._catalog)}

    def _get_prompt(self, request: Request, _stop: StopSignal) -> Mapping[str, Json]:
        from plait.mcp.prompts import get_prompt

        return get_prompt(self._catalog, request)

    def _list_resources(self, request: Request, _stop: StopSignal) -> Mapping[str, Json]:
        from plait.mcp.resources import list_resources

        _require_first_page(request)
        return {"resources": list_resources(self._catalog)}

    def _list_templates(self, request: Request, _stop: StopSignal) -> Mapping[str, Json]:
        from plait.mcp.resources import list_templates

        _require_first_page(request)
        return {"resourceTemplates": list_templates()}

    def _read_resource(self, request: Request, _stop: StopSignal) -> Mapping[str, Json]:
        from plait.mcp.resources import read_resource

        return read_resource(self._runs, request)

    def _progress_sender(self, request: Request) -> OnProgress | None:
        """Tells the client of each step and item that ends; None: it does not want that."""
        token = request.progress_token
        if token is None:
            return None
        sent = -1

        def send(progress: Progress) -> None:
            nonlocal sent
            done, total = count_ends(progress)
            if done <= sent:
                return  # the protocol wants a number that grows
            sent = done
            shown = f"{progress_text(progress)} of {progress.flow}"
            params: dict[str, Json] = {"progressToken": token, "progress": done, "message": shown}
            if total:
                params["total"] = total
            message = make_notification("notifications/progress", params)
            self._outbox.send(message, may_miss=True, about=request.id)

        return send

    # ── questions to the client ──────────────────────────────────────────

    def _answers(self, request: Request, stop: StopSignal, task: str = "") -> Answers | None:
        """The user of the client; None: the client does not ask its user."""
        if not request.can_be_asked:
            return None
        if request.is_stateless:
            return SentAnswers.of(request)
        return LiveAnswers(partial(self._ask_client, request, stop, task))

    def _ask_client(
        self, request: Request, stop: StopSignal, task: str, params: Mapping[str, Json]
    ) -> Json:
        """The response of the client's user; None: there is none."""
        id = f"plait-{next(self._numbers)}"
        asked = self._asked[id] = _Asked()
        if task:
            params = {**params, "_meta": about_task(task)}
        self._outbox.send(make_question(id, "elicitation/create", params), about=request.id)
        until = monotonic() + MOST_WAIT
        while not asked.is_answered.wait(_LOOK_SECONDS):
            if stop.is_set() or monotonic() > until:
                del self._asked[
                    id
                ]  # before the client hears of it: an answer is too late from here on
                gone = {"requestId": id, "reason": "the request that asks has ended"}
                message = make_notification("notifications/cancelled", gone)
                self._outbox.send(message, about=request.id)
                return None
        del self._asked[id]
        return None if stop.is_set() else asked.response

    def _take_answer(self, message: Message) -> None:
        asked = self._asked.get(str(message.get("id")))
        if asked is not None:  # else it answers nothing that this server has asked
            asked.response = message.get("result")
            asked.is_answered.set()


class _Asked:
    """A question to the client, and its response."""

    def __init__(self) -> None:
        self.is_answered = Event()
        self.response: Json = None


def most_calls(method: Json, params: object) -> int:
    """How many requests may be performed already when this one comes.

    A client can always ask how a run stands, and stop it, however many requests wait for runs.
    """
    tool = params.get("name") if method == "tools/call" and isinstance(params, Mapping) else None
    is_spare = method in _SPARE_METHODS or tool in _SPARE_TOOLS
    return MOST_CALLS + SPARE_CALLS if is_spare else MOST_CALLS


def _require_first_page(request: Request) -> None:
    if request.params.get("cursor") is not None:
        raise ProtocolError(INVALID_PARAMS, f"{request.method}: there is only one page")
