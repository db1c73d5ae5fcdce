"""The `http:` action: send one request whose values are encoded for their sink.

The output is the response: data if it is JSON, else text. An unexpected status fails the step, with
the status as exit code. The failure kind says whether a retry may help: `network`, `timeout`,
`rate_limit` (429), `server_error` (5xx).

The author decides where a request goes. A value decides it only among the hosts in `allow_hosts`.
If that allows all hosts, no secret is sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from plait.core.errors import RequestError
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.masking import mask_value
from plait.core.records import dataclass, field
from plait.core.values import Json, Secret, Unknown, reveal_text, utf8
from plait.engine.budgets import timeout_or_limit
from plait.engine.outcome import Failure, StepError, failure_kind_of_error, failure_kind_of_status
from plait.engine.perform import StepContext
from plait.engine.step import Plan
from plait.program.actions.shell import command_title
from plait.program.ports import Http
from plait.template.compiled import PlacedValue
from plait.template.filters import holds_secret
from plait.template.nodes import ContextPlaceholder, Path, Text
from plait.template.sinks import (
    drop_unanswered,
    is_author_placeholder,
    render_header,
    render_json,
    render_json_value,
    render_url,
)
from plait.template.template import Leaf, Template
from plait.tools.invocation import (
    DEFAULT_MAX_OUTPUT,
    CallLimits,
    PrimitiveResult,
    RequestCall,
    with_trace,
)

if TYPE_CHECKING:
    from plait.scope import Scope

TIMEOUT: Final = 60.0
"""The default timeout in seconds."""
ANY_HOST: Final = "*"
CREDENTIALS: Final = frozenset({"authorization", "proxy-authorization", "cookie", "x-api-key"})
"""Headers that identify the sender."""


@dataclass(frozen=True, slots=True)
class HttpAction:
    url: Template
    method: str | None = None
    """The method; None: GET, or POST if there is a body."""
    headers: Mapping[str, Template] = field(default_factory=dict)
    body: Template | None = None
    """Text, or a tree that is sent as JSON."""
    expect: tuple[int, ...] = ()
    """The expected statuses; empty: 200 to 299."""
    max_redirects: int = 0
    max_output: int = DEFAULT_MAX_OUTPUT
    strict: bool = False
    allow_hosts: tuple[str, ...] = ()
    """Hosts that a value may name: `host` and `*.host` (https), `http://host:port`, or `*`."""
    is_title: bool = False
    """The step has no name, so its URL becomes its title."""

    def plan(self, ctx: StepContext) -> Plan:
        call = self._call(ctx)
        return Plan("http", f"{call.method} {call.url}", call)

    def execute(self, plan: Plan, ctx: StepContext) -> dict[str, Json]:
        run, call = ctx.run, plan.data
        if self.is_title:
            run.events.set_title(ctx.path, command_title(run.secrets.mask(call.url)))
        if run.trace is not None:
            call = with_trace(call, run.trace.headers(ctx.path, ctx.retries))
        try:
            answer = run.services.get(Http).request(call)
        except RequestError as error:
            raise StepError(
                timeout_or_limit(
                    Failure(run.secrets.mask(str(error)), failure_kind_of_error(error)), ctx
                )
            ) from None
        return self._require_expected_status(answer, ctx)

    def _call(self, ctx: StepContext) -> RequestCall:
        scope, left = ctx.scope, ctx.run.budgets.time_left(ctx)
        url, from_data = self._address(scope)
        headers = [
            (name, render_header(given, scope, strict=self.strict))
            for name, value in self.headers.items()
            if (given := self._without_unanswered(value, scope)) is not None
        ]
        body, kind = self._body(scope)
        if kind and not any(name.lower() == "content-type" for name, _ in headers):
            headers.append(("content-type", kind))
        return RequestCall(
            method=(self.method or ("GET" if body is None else "POST")).upper(),
            url=url,
            headers=tuple(headers),
            body=body,
            limits=CallLimits(TIMEOUT if left is None else left, self.max_output),
            max_redirects=self.max_redirects,
            url_from_data=from_data,
        )

    def _address(self, scope: Scope) -> tuple[str, bool]:
        """Return the URL, and whether data alone decides its host."""
        from_data = is_host_from_data(self.url, scope)
        # Always strict: an unfilled placeholder must not become part of a URL.
        url = render_url(
            self.url, scope, strict=True, host_from_value=not from_data or bool(self.allow_hosts)
        )
        if not from_data or self._host_is_unknown(scope):
            return url, from_data
        allowed = matching_host_rule(url, self.allow_hosts)
        if allowed is None:
            raise StepError(Failure("the url names a host that is not in allow_hosts", "refused"))
        if allowed == ANY_HOST and any(
            _has_secret(part, scope) for part in self._request_templates()
        ):
            message = "a secret would be sent to any host that a value names: list the hosts in allow_hosts"
            raise StepError(Failure(message, "refused"))
        return url, "*" in allowed

    def _host_is_unknown(self, scope: Scope) -> bool:
        first = self.url.pieces(scope)[0]
        return isinstance(first, PlacedValue) and isinstance(first.value, Unknown)

    def _request_templates(self) -> Iterator[Template]:
        yield self.url
        yield from self.headers.values()
        if self.body is not None:
            yield self.body

    def _without_unanswered(self, part: Template, scope: Scope) -> Template | None:
        """Drop a template that is a single unfilled placeholder; a strict step reports it instead."""
        return part if self.strict else drop_unanswered(part, scope)

    def _body(self, scope: Scope) -> tuple[bytes | None, str]:
        body = None if self.body is None else self._without_unanswered(self.body, scope)
        if body is None:
            return None, ""
        if not isinstance(body.root, Leaf):
            return utf8(render_json(body, scope, strict=self.strict)), JSON
        value = render_json_value(body, scope, strict=self.strict)
        kind = "text/plain; charset=utf-8" if isinstance(value, str | Secret) else JSON
        return utf8(reveal_text(value)), kind

    def _require_expected_status(
        self, answer: PrimitiveResult, ctx: StepContext
    ) -> dict[str, Json]:
        status = answer.metadata.get("status")
        status = status if isinstance(status, int) else 0
        is_expected = status in self.expect if self.expect else answer.success
        record: dict[str, Json] = {
            "output": mask_value(answer.data, ctx.run.secrets.mask),
            "stderr": "",
            "exit_code": 0 if is_expected else status or 1,
            "duration": round(answer.duration, 6),
            "status": status,
        }
        if is_expected:
            return record
        message = ctx.run.secrets.mask(
            answer.error or f"the server answered {status}, which is not expected"
        )
        raise StepError(
            Failure(
                message,
                failure_kind_of_status(status),
                exit_code=status or 1,
                output={**record, "stderr": message},
            )
        )


JSON: Final = "application/json"


def is_host_from_data(url: Template, scope: Scope) -> bool:
    """Whether the host comes from data, so that it must not lead to a private address."""
    first = next(iter(url.leaf.compiled.parts), Text(""))
    if isinstance(first, Text):
        return False
    roots = origin_roots(url.leaf)
    if roots is None:
        return True
    origins = [scope.origin(root) for root in roots]
    if roots == ("env",) and origins == [None]:  # the environment of the user who started the run
        return False
    return not is_author_placeholder(first, scope)


def origin_roots(url: Leaf) -> tuple[str, ...] | None:
    """The variables that decide where a request goes; None: not only variables decide it."""
    first = next(iter(url.compiled.parts), Text(""))
    if not isinstance(first, ContextPlaceholder) or not all(
        isinstance(part, Text) for part in first.default or ()
    ):
        return None
    roots = [one.origin.root for one in first.alternatives if isinstance(one.origin, Path)]
    return tuple(roots) if len(roots) == len(first.alternatives) else None


def matching_host_rule(url: str, hosts: Sequence[str]) -> str | None:
    """The entry that allows a URL made of data. Exact hosts come before patterns."""
    from urllib.parse import urlsplit

    try:
        where = urlsplit(url)
        origin = (where.scheme, (where.hostname or "").removesuffix("."), where.port)
    except ValueError:  # an invalid port or address
        return None
    named_first = sorted(hosts, key=lambda host: (host == ANY_HOST, "*" in host))
    return next((host for host in named_first if _names(host, origin)), None)


def _names(host: str, origin: tuple[str, str, int | None]) -> bool:
    scheme, name, port = origin
    if host == ANY_HOST:
        return bool(name)
    allowed_scheme, separator, authority = host.rpartition("://")
    wanted, _, allowed_port = authority.lower().partition(":")
    standard = {"http": 80, "https": 443}
    if scheme != (allowed_scheme if separator else "https"):
        return False
    if (port or standard.get(scheme)) != (int(allowed_port) if allowed_port else standard[scheme]):
        return False
    return name.endswith(wanted[1:]) if wanted.startswith("*.") else name == wanted


def _has_secret(template: Template, scope: Scope) -> bool:
    return any(
        isinstance(piece, PlacedValue) and holds_secret(piece.value)
        for leaf in template.leaves()
        for piece in Template(leaf, template.profile).pieces(scope)
    )
