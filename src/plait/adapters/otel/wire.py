"""OTLP messages: spans as bytes by hand, everything else by the official protobuf classes.

A run of 10,000 items has 20,000 spans.  The classes take four times as long for a span, and the
SDK's objects and encoder fifteen times (decision 47).  Tests decode all of it with the official
classes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, SeverityNumber
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from plait import __version__
from plait.adapters.otel import names
from plait.adapters.otel.spans import ERROR, NANO, WARN, Attributes, Log, Span, Value
from plait.core.hints import Final
from plait.engine.trace import SAMPLED

INTERNAL, CLIENT = 1, 3
"""Kinds of spans in OTLP; those of Plait serve nobody."""
_SEVERITY: Final = {WARN: "WARN", ERROR: "ERROR"}


class Encoder:
    """Encodes what one run sends; `resource` are the attributes of the process."""

    def __init__(
        self, trace_id: str, resource: Mapping[str, str], *, is_sampled: bool, tracestate: str = ""
    ) -> None:
        self._trace_id = bytes.fromhex(trace_id)
        self._flags = SAMPLED if is_sampled else 0
        self._resource = Resource(attributes=[_pair(*pair) for pair in resource.items()])
        self._scope = InstrumentationScope(name=names.SCOPE, version=__version__)
        self._head = _field(0x0A, self._trace_id) + struct.pack("<BBI", 0x85, 0x01, self._flags)
        if tracestate:
            self._head += _field(0x1A, tracestate.encode("ascii", "replace"))
        self._known: dict[tuple[str, str, str, bool], bytes] = {}
        """What many spans share, by name, kind and status."""

    def span(self, span: Span) -> bytes:
        """Return the field `spans` of a `ScopeSpans`."""
        shared = (span.name, span.kind, span.status, span.is_client)
        common = self._known.get(shared)
        if common is None:
            common = self._common(span)
            if len(self._known) < 1000:  # the names of steps are few
                self._known[shared] = common
        body = b"\x12\x08" + span.id + common
        body += _TIMES(0x39, int(span.start * NANO), 0x41, int(span.end * NANO))
        if span.parent:
            body += b"\x22\x08" + span.parent
        if span.path:
            body += _text(_PATH, span.path) + _text(_TITLE, span.title)
        for name, value in span.attributes:
            body += _field(0x4A, _pair(name, value).SerializeToString())
        if span.error:
            message = _field(0x12, _utf8(span.message)) if span.message else b""
            body += _text(_ERROR_TYPE, span.error) + _field(0x7A, message + b"\x18\x02")
        return b"\x12" + _varint(len(body)) + body

    def _common(self, span: Span) -> bytes:
        kind = CLIENT if span.is_client else INTERNAL
        body = self._head + _field(0x2A, _utf8(span.name)) + bytes((0x30, kind))
        if span.path:
            body += _text(_KIND, span.kind) + _text(_STATUS, span.status)
        return body

    def traces(self, spans: Iterable[bytes]) -> bytes:
        """Return an `ExportTraceServiceRequest` with encoded spans."""
        scope = _field(0x0A, self._scope.SerializeToString()) + b"".join(spans)
        resource = _field(0x0A, self._resource.SerializeToString()) + _field(0x12, scope)
        return _field(0x0A, resource)

    def logs(self, records: Sequence[Log], about: Attributes) -> bytes:
        """Return an `ExportLogsServiceRequest`; `about`: attributes of each record."""
        request = ExportLogsServiceRequest()
        block = request.resource_logs.add(resource=self._resource)
        block.scope_logs.add(
            scope=self._scope, log_records=[self._log(one, about) for one in records]
        )
        return bytes(request.SerializeToString())

    def _log(self, record: Log, about: Attributes) -> LogRecord:
        at = int(record.at * NANO)
        path = ((names.STEP_PATH, record.path),) if record.path else ()
        return LogRecord(
            time_unix_nano=at,
            observed_time_unix_nano=at,
            severity_number=SeverityNumber.ValueType(record.severity),
            severity_text=_SEVERITY.get(record.severity, "INFO"),
            body=_value(record.text),
            attributes=[_pair(*pair) for pair in (*about, *path)],
            trace_id=self._trace_id,
            span_id=record.span,
            flags=self._flags,
        )

    def metrics(self, metrics: Sequence[Metric]) -> bytes:
        """Return an `ExportMetricsServiceRequest`."""
        request = ExportMetricsServiceRequest()
        block = request.resource_metrics.add(resource=self._resource)
        block.scope_metrics.add(scope=self._scope, metrics=metrics)
        return bytes(request.SerializeToString())


def pairs(attributes: Attributes) -> list[KeyValue]:
    return [_pair(*pair) for pair in attributes]


def _pair(name: str, value: Value) -> KeyValue:
    return KeyValue(key=name, value=_value(value))


def _value(value: Value) -> AnyValue:
    match value:
        case bool():
            return AnyValue(bool_value=value)
        case int() if -(1 << 63) <= value < 1 << 63:
            return AnyValue(int_value=value)
        case int() | float():
            return AnyValue(double_value=float(value))
        case tuple():
            found = AnyValue()
            found.array_value.values.extend(_value(one) for one in value)
            return found
    return AnyValue(string_value=_utf8(value).decode("utf-8"))


# ── protobuf by hand ─────────────────────────────────────────────────────
#
# A field is its tag (number and wire type), the length and the bytes.  Tags of `Span`: 0x0A trace
# id, 0x12 span id, 0x1A state, 0x22 parent, 0x2A name, 0x30 kind, 0x39 and 0x41 times, 0x4A an
# attribute, 0x7A status, 0x85 0x01 flags.

_TIMES: Final = struct.Struct("<BQBQ").pack


def _varint(number: int) -> bytes:
    if number < 0x80:
        return _SMALL[number]
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


_SMALL: Final = tuple(bytes((number,)) for number in range(0x80))


def _field(tag: int, data: bytes) -> bytes:
    return bytes((tag,)) + _varint(len(data)) + data


def _utf8(text: str) -> bytes:
    """Return the text; bytes of a process that are no text become `?`."""
    return text.encode("utf-8", "replace")


def _text(key: bytes, text: str) -> bytes:
    """Return an attribute with a text."""
    data = text.encode("utf-8", "replace")
    size = len(data)
    if (whole := len(key) + size + 4) < 0x80:  # nearly always: each length is one byte
        return b"\x4a%c%b\x12%c\x0a%c%b" % (whole, key, size + 2, size, data)
    value = b"\x0a" + _varint(len(data)) + data
    body = key + b"\x12" + _varint(len(value)) + value
    return b"\x4a" + _varint(len(body)) + body


def _key(name: str) -> bytes:
    return _field(0x0A, name.encode("ascii"))


_PATH, _TITLE = _key(names.STEP_PATH), _key(names.STEP_TITLE)
_KIND, _STATUS = _key(names.STEP_KIND), _key(names.STEP_STATUS)
_ERROR_TYPE = _key(names.ERROR_TYPE)
