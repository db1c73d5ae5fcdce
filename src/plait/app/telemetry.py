"""Telemetry of runs: whether it is configured, its start, its end, and runs of the past.

It is off unless an `OTEL_…` variable names a collector, or the project's setting `telemetry` does
and the user trusts the project.  Nothing here stops a run: what does not work becomes a note.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from plait.core.errors import InputError, PlaitError, TrustError
from plait.core.extras import install_extra
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.records import dataclass
from plait.core.values import Json

if TYPE_CHECKING:
    from plait.adapters.otel.exporter import Delivery, EventSource, Exporter, Trace
    from plait.adapters.otel.settings import Settings
    from plait.adapters.store import OpenRun
    from plait.app.temporary_run import TemporaryRun
    from plait.engine.journal import Journal
    from plait.engine.stop import StopSignal
    from plait.engine.trace import RunTrace

SETTING: Final = "telemetry"
FACT: Final = "trace"
"""The fact of a run with the `traceparent` and `tracestate` that it was started with."""
STOPPED_TIMEOUT: Final = 1.0
"""Seconds that the end of a run waits for the collector if the user stopped the run."""


@dataclass(frozen=True, slots=True)
class Telemetry:
    """The telemetry of one attempt of a run."""

    trace: RunTrace
    exporter: Exporter | None
    settings: Settings
    run: str

    def start(self) -> None:
        if self.exporter is not None:
            self.exporter.start()

    def finish(self, stop: StopSignal) -> str:
        """Send what is left; return what to tell the user, or nothing."""
        if self.exporter is None:
            return ""
        seconds = self.settings.end_timeout
        if stop.is_set():
            seconds = min(seconds, STOPPED_TIMEOUT)
        delivery = self.exporter.finish(seconds, should_leave=lambda: stop.at_once)
        return describe_loss(delivery, self.run)


def describe_loss(delivery: Delivery, run: str) -> str:
    losses = []
    if delivery.rejected:
        why = f": {delivery.refusal}" if delivery.refusal else ""
        losses.append(f"the collector refused {delivery.rejected} spans{why}")
    if delivery.why and delivery.has_all_spans:
        losses.append(f"not everything was sent to {delivery.why}")
    elif delivery.why:
        again = "" if run == _UNKEPT else f"; plait export otel {run} --rest sends the rest"
        losses.append(f"not all spans were sent to {delivery.why}{again}")
    return f"telemetry: {'; '.join(losses)}" if losses else ""


_UNKEPT: Final = "unkept"
"""The id of runs that are not kept."""


def prepare_telemetry(
    opened: OpenRun | TemporaryRun,
    project: str,
    flow: str,
    first_event: int,
    note: Callable[[str], None],
    environ: Mapping[str, str] | None = None,
) -> Telemetry | None:
    """Return the telemetry of a run attempt that starts; None: it is off."""
    environ = os.environ if environ is None else environ
    try:
        settings = find_settings(project, environ)
        if settings is None:
            return None
        for problem in settings.problems:
            note(f"telemetry: {problem}")
        return _telemetry(opened, settings, flow, first_event, environ)
    except PlaitError as error:
        fix = f"; {error.fix}" if error.fix else ""
        note(f"telemetry: {error.what}{fix}")
        return None


def find_settings(
    project: str, environ: Mapping[str, str], *, required: bool = False
) -> Settings | None:
    """Return what is configured; None: telemetry is off.  `required`: to ask for it is enough."""
    from plait.adapters.otel.settings import is_disabled, names_collector, read_settings

    if is_disabled(environ):
        return None
    endpoint, content = _project_setting(project)
    is_named = names_collector(environ)
    is_trusted = bool(endpoint or content) and _is_trusted(project)
    content = content and is_trusted
    if not is_named and endpoint and not is_trusted:
        raise TrustError(
            f"'{SETTING}' in .ai/plait.yaml does not count, since you do not trust this project",
            fix=f"plait trust {project}, or set OTEL_EXPORTER_OTLP_ENDPOINT",
            code="telemetry-trust",
        )
    if not (is_named or endpoint or required):
        return None
    require_installed()
    return read_settings(environ, endpoint=endpoint, content=content)


def require_installed() -> None:
    from importlib.util import find_spec

    try:
        is_there = find_spec("opentelemetry.proto") is not None
    except ModuleNotFoundError:
        is_there = False
    if not is_there:
        raise InputError(
            "OpenTelemetry is configured, but not installed",
            fix=f"{install_extra('otel')}, or OTEL_SDK_DISABLED=true",
            code="no-otel",
        )


def export_run(
    opened: OpenRun,
    project: str,
    *,
    rest: bool = False,
    environ: Mapping[str, str] | None = None,
) -> Delivery:
    """Send a recorded run: all of it, or only what was not taken while it ran."""
    from plait.core.records import replace

    environ = os.environ if environ is None else environ
    settings = find_settings(project, environ, required=True)
    if settings is None:
        raise InputError(
            "telemetry is switched off by OTEL_SDK_DISABLED",
            fix="OTEL_SDK_DISABLED=false",
            code="otel-disabled",
        )
    if "traces" not in settings.endpoints:
        raise InputError(
            "; ".join(settings.problems)
            or "OTEL_TRACES_EXPORTER is none, so there is no collector",
            fix="OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318"
            if settings.problems
            else "OTEL_TRACES_EXPORTER=otlp",
            code="no-collector",
        )
    from plait.adapters.otel.exporter import Exporter, JournalFile, read_state

    # Whoever asks for a run has decided: the sampler is not asked.
    trace = replace(_trace(opened, settings, None), is_sampled=True)
    exporter = Exporter(
        settings,
        trace,
        lambda: JournalFile(opened.folder, content=settings.content),
        run=opened.id,
        flow=str(opened.facts.get("flow", "")),
        folder=opened.folder if rest and opened.is_own else "",
        after=read_state(opened.folder) if rest else 0,
        with_metrics=False,
    )
    return exporter.run_to_end()


# ── helpers, in order of use ─────────────────────────────────────────────


def _telemetry(
    opened: OpenRun | TemporaryRun,
    settings: Settings,
    flow: str,
    first_event: int,
    environ: Mapping[str, str],
) -> Telemetry | None:
    from plait.adapters.otel.exporter import (
        SEEN,
        SENT,
        Exporter,
        JournalFile,
        JournalInMemory,
        read_state,
    )
    from plait.app.temporary_run import TemporaryRun
    from plait.engine.trace import RunAttempts, RunTrace

    if not settings.endpoints:
        return None
    journal = opened.journal
    trace = _trace(opened, settings, environ)

    def open_source() -> EventSource:
        if isinstance(opened, TemporaryRun):
            return JournalInMemory(opened.journal)
        return JournalFile(opened.folder, content=settings.content)

    source = open_source()
    try:
        earlier = list(source.run_events(first_event))
    finally:
        source.close()
    attempts = RunAttempts.of(record.event for record in earlier)
    leg_began = 0
    for record in earlier:
        if RunAttempts.of(one.event for one in earlier if one.number <= record.number).has_ended:
            leg_began = record.number
    state = SENT if trace.is_sampled and "traces" in settings.endpoints else SEEN
    is_needed = trace.is_sampled or settings.endpoints.keys() - {"traces"}
    exporter = Exporter(
        settings,
        trace,
        open_source,
        run=opened.id,
        flow=flow,
        folder="" if isinstance(opened, TemporaryRun) else opened.folder,
        after=0 if isinstance(opened, TemporaryRun) else read_state(opened.folder, state),
        first=first_event,
    )
    run_trace = RunTrace(
        trace.key,
        trace.trace_id,
        trace.is_sampled,
        attempts.after_start(),
        trace.tracestate,
        _make_end_check(journal, leg_began, first_event),
    )
    return Telemetry(run_trace, exporter if is_needed else None, settings, opened.id)


def _make_end_check(journal: Journal, after: int, before: int) -> Callable[[str], bool]:
    def has_ended(path: str) -> bool:
        known = journal.last_result(path)
        return known is not None and after < known.number < before

    return has_ended


def _trace(
    opened: OpenRun | TemporaryRun, settings: Settings, environ: Mapping[str, str] | None
) -> Trace:
    """Return the trace of a run; if one is around it, that is recorded with the run."""
    from plait.adapters.otel.exporter import Trace
    from plait.adapters.otel.settings import should_sample
    from plait.engine.trace import (
        TRACEPARENT,
        TRACESTATE,
        make_trace_key,
        parse_traceparent,
        valid_tracestate,
    )

    fact = opened.facts.get(FACT)
    known: Mapping[str, Json] = fact if isinstance(fact, Mapping) else {}
    if fact is None and environ is not None:
        parent = parse_traceparent(environ.get(TRACEPARENT, ""))
        known = {
            "parent": environ[TRACEPARENT].strip() if parent is not None else "",
            "state": valid_tracestate(environ.get(TRACESTATE, "")) if parent is not None else "",
        }
        opened.update_facts(**{FACT: dict(known)})
    parent = parse_traceparent(str(known.get("parent", "")))
    started = str(opened.facts.get("started") or os.urandom(8).hex())
    key = make_trace_key(opened.id, started)
    trace_id = key.hex() if parent is None else parent.trace_id
    is_sampled = should_sample(settings, trace_id, parent)
    return Trace(key, trace_id, is_sampled, parent, str(known.get("state", "")))


def _is_trusted(project: str) -> bool:
    from plait.app.toolbox import is_trusted

    return is_trusted(project)


def _project_setting(project: str) -> tuple[str, bool]:
    """Return the endpoint and the switch for content of the project's setting."""
    from plait.core.safe_files import read_below

    place = os.path.join(".ai", "plait.yaml")
    contents = read_below(project, place)
    if contents is None or SETTING.encode() not in contents[0]:
        return "", False  # loading what follows takes long
    from plait.core.documents import Mapping as MappingNode
    from plait.core.documents import parse
    from plait.tools.trust.decisions import require_valid_settings

    node = parse(contents[0].decode("utf-8", "replace"), os.path.join(project, place))
    if not isinstance(node, MappingNode):
        return "", False
    require_valid_settings(node)
    value = node.data().get(SETTING)
    if not isinstance(value, Mapping):
        return "", False
    return str(value.get("endpoint") or ""), value.get("content") is True
