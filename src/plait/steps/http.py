"""A step that sends one HTTP request; its values are encoded for the place where they land.

The output is what the server sent: data if it is JSON, else text.  An answer that
is not wanted fails the step, with the status as its exit code, and the kind of
failure says whether another attempt may help: `network`, `timeout`, `rate_limit`
(429), `server_error` (5xx).
"""

from __future__ import annotations

from collections.abc import Mapping

from plait.engine.outcome import Failure, StepError
from plait.engine.perform import Turn
from plait.errors import RequestError
from plait.hints import TYPE_CHECKING, Final
from plait.masking import masked
from plait.records import dataclass, field
from plait.steps.hands import Rehearsed, working
from plait.template.nodes import ContextHole, Path, Text
from plait.template.sinks import as_header, as_json, as_json_value, as_url
from plait.template.template import Leaf, Template
from plait.tools.invocation import DEFAULT_MAX_OUTPUT, Limits, RequestCall, Returned
from plait.values import Json, Secret, revealed_text

if TYPE_CHECKING:
    from plait.scope import Scope

TIMEOUT: Final = 60.0
"""Seconds, unless the step says something else."""


@dataclass(frozen=True, slots=True)
class Http:
    """The action of an `http:` step."""

    url: Template
    method: str | None = None
    """None: GET, or POST if there is a body."""
    headers: Mapping[str, Template] = field(default_factory=dict)
    body: Template | None = None
    """Text, or a tree that is sent as JSON."""
    expect: tuple[int, ...] = ()
    """The statuses that are welcome; none: all from 200 to 299."""
    max_redirects: int = 0
    max_output: int = DEFAULT_MAX_OUTPUT
    strict: bool = False

    def run(self, turn: Turn) -> dict[str, Json]:
        run = working(turn.run)
        call = self._call(turn)
        if run.rehearsal is not None:
            run.rehearsal.append(Rehearsed(turn.path, "http", run.mask(f"{call.method} {call.url}")))
            return {}
        try:
            answer = run.hands.request(call)
        except RequestError as error:
            raise StepError(Failure(run.mask(str(error)), kind_of_error(error))) from None
        return self._expect_welcome(answer, turn)

    def _call(self, turn: Turn) -> RequestCall:
        scope, left = turn.scope, turn.time_left()
        headers = [
            (name, as_header(value, scope, strict=self.strict)) for name, value in self.headers.items()
        ]
        body, kind = self._body(scope)
        if kind and not any(name.lower() == "content-type" for name, _ in headers):
            headers.append(("content-type", kind))
        return RequestCall(
            method=(self.method or ("GET" if body is None else "POST")).upper(),
            # A hole that nobody fills must not become a part of an address.
            url=as_url(self.url, scope, strict=True, host_from_value=True),
            headers=tuple(headers),
            body=body,
            limits=Limits(TIMEOUT if left is None else left, self.max_output),
            max_redirects=self.max_redirects,
            url_from_data=host_is_data(self.url, scope),
        )

    def _body(self, scope: Scope) -> tuple[bytes | None, str]:
        if self.body is None:
            return None, ""
        if not isinstance(self.body.root, Leaf):
            return as_json(self.body, scope, strict=self.strict).encode("utf-8", "surrogateescape"), JSON
        value = as_json_value(self.body, scope, strict=self.strict)
        kind = "text/plain; charset=utf-8" if isinstance(value, str | Secret) else JSON
        return revealed_text(value).encode("utf-8", "surrogateescape"), kind

    def _expect_welcome(self, answer: Returned, turn: Turn) -> dict[str, Json]:
        status = answer.metadata.get("status")
        status = status if isinstance(status, int) else 0
        welcome = status in self.expect if self.expect else answer.success
        record: dict[str, Json] = {
            "output": masked(answer.data, turn.run.mask),
            "stderr": "",
            "exit_code": 0 if welcome else status or 1,
            "duration": round(answer.duration, 6),
            "status": status,
        }
        if welcome:
            return record
        said = turn.run.mask(answer.error or f"the server answered {status}, which is not expected")
        raise StepError(
            Failure(said, kind_of_status(status), exit_code=status or 1, output={**record, "stderr": said})
        )


JSON: Final = "application/json"


def kind_of_status(status: int) -> str:
    """The kind of failure that an unwelcome answer is."""
    if status == 429:
        return "rate_limit"
    if status in (408, 504):
        return "timeout"
    return "server_error" if 500 <= status < 600 else "failed"


def kind_of_error(error: RequestError) -> str:
    """The kind of failure that no answer is."""
    match error.code:
        case "deadline":
            return "timeout"
        case "name-not-found" | "unreachable" | "tls" | "connection-lost":
            return "network"
        case "too-large" | "encoding":
            return "failed"
    return "refused"


def host_is_data(url: Template, scope: Scope) -> bool:
    """Does the host come from outside, so that it must not lead to a private address?"""
    first = next(iter(url.leaf.program.parts), Text(""))
    if isinstance(first, Text):
        return False
    if not isinstance(first, ContextHole) or first.filters:
        return True
    origins = [
        scope.origin(one.origin.root) if isinstance(one.origin, Path) else None for one in first.alternatives
    ]
    return not all(origin is not None and origin.trusted for origin in origins)
