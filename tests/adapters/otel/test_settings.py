"""The variables mean what they mean to the official SDK, and spans decode as the official classes encode."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span
from opentelemetry.sdk.resources import OTELResourceDetector
from opentelemetry.sdk.trace.sampling import Decision, ParentBasedTraceIdRatio, TraceIdRatioBased
from opentelemetry.trace import get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from adapters.otel.collector import attributes
from plait.adapters.otel import spans
from plait.adapters.otel.settings import Settings, read_settings, should_sample
from plait.adapters.otel.wire import Encoder
from plait.core.documents import Mapping as MappingNode
from plait.core.documents import parse
from plait.core.errors import DocumentError
from plait.engine.trace import parse_traceparent
from plait.tools.trust.decisions import require_valid_settings

TRACE = "0af7651916cd43dd8448eb211c80319c"

ids = st.integers(min_value=1, max_value=(1 << 128) - 1)


@given(trace=ids, ratio=st.floats(0, 1))
def test_sampling_by_the_trace_id_decides_as_the_sdk(trace: int, ratio: float) -> None:
    own = should_sample(Settings({}, sampler="traceidratio", ratio=ratio), f"{trace:032x}", None)
    theirs = TraceIdRatioBased(ratio).should_sample(None, trace, "x").decision
    assert own is (theirs is Decision.RECORD_AND_SAMPLE)
    root = ParentBasedTraceIdRatio(ratio).should_sample(None, trace, "x").decision
    same = Settings({}, sampler="parentbased_traceidratio", ratio=ratio)
    assert should_sample(same, f"{trace:032x}", None) is (root is Decision.RECORD_AND_SAMPLE)


PARENTS = [
    f"00-{TRACE}-b7ad6b7169203331-01",
    f"00-{TRACE}-b7ad6b7169203331-00",
    f"01-{TRACE}-b7ad6b7169203331-01-more",
    f"00-{TRACE}-b7ad6b7169203331-01-more",
    f"ff-{TRACE}-b7ad6b7169203331-01",
    f"00-{'0' * 32}-b7ad6b7169203331-01",
    f"00-{TRACE}-{'0' * 16}-01",
    f"00-{TRACE}-b7ad6b7169203331",
    "",
    "nonsense",
    f"00-{TRACE}-b7ad6b716920333x-01",
]


@pytest.mark.parametrize("text", PARENTS)
def test_a_traceparent_is_read_as_the_sdk_reads_it(text: str) -> None:
    context = TraceContextTextMapPropagator().extract({"traceparent": text})
    theirs = get_current_span(context).get_span_context()
    own = parse_traceparent(text)
    assert (own is not None) is theirs.is_valid
    if own is not None:
        assert int(own.trace_id, 16) == theirs.trace_id
        assert int(own.span_id, 16) == theirs.span_id
        assert own.is_sampled is theirs.trace_flags.sampled


RESOURCES: list[dict[str, str]] = [
    {},
    {"OTEL_SERVICE_NAME": "nightly"},
    {"OTEL_RESOURCE_ATTRIBUTES": "team=a%20b,service.name=x, zone = z "},
    {"OTEL_RESOURCE_ATTRIBUTES": "team=a,service.name=x", "OTEL_SERVICE_NAME": "y"},
    {"OTEL_RESOURCE_ATTRIBUTES": "nonsense,=x,a=b=c"},
]


@pytest.mark.parametrize("env", RESOURCES)
def test_the_resource_is_that_of_the_sdk(
    env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    theirs = {**OTELResourceDetector().detect().attributes}
    theirs.pop("", None)
    own = dict(read_settings(env).resource)
    assert own.pop("telemetry.sdk.language") == "python"
    assert own == {"service.name": "plait", **theirs}


ENDPOINTS: list[tuple[Mapping[str, str], str, dict[str, str]]] = [
    # variables                                                   the project's   traces, metrics
    ({"OTEL_EXPORTER_OTLP_ENDPOINT": "https://c:1/x/"},            "",             {"traces": "https://c:1/x/v1/traces", "metrics": "https://c:1/x/v1/metrics", "logs": "https://c:1/x/v1/logs"}),
    ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://t/own", "OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}, "http://p", {"traces": "http://t/own"}),
    ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}, "", {"traces": "http://localhost:4318/v1/traces"}),
    ({"OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}, "http://p:9", {"traces": "http://p:9/v1/traces"}),
]  # fmt: skip


@pytest.mark.parametrize(("env", "project", "urls"), ENDPOINTS)
def test_endpoints(env: Mapping[str, str], project: str, urls: dict[str, str]) -> None:
    found = read_settings(env, endpoint=project)
    assert {signal: one.url for signal, one in found.endpoints.items()} == urls
    assert found.problems == ()


PROBLEMS = [
    # variable and value                                                          the problem
    ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s",                                         "OTEL_EXPORTER_OTLP_TIMEOUT is no number from 0 to 1e+09; 10000 is used"),
    ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd",                                    "OTEL_EXPORTER_OTLP_COMPRESSION is gzip or none; nothing is compressed"),
    ("OTEL_EXPORTER_OTLP_LOGS_COMPRESSION", "zstd",                               "OTEL_EXPORTER_OTLP_LOGS_COMPRESSION is gzip or none; nothing is compressed"),
    ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=sesame,sesame",                       "OTEL_EXPORTER_OTLP_HEADERS has a part that is no header, so it is not sent: write name=value,name=value"),
    ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=sesame%0d%0ax: y",                    "OTEL_EXPORTER_OTLP_HEADERS has a part that is no header, so it is not sent: write name=value,name=value"),
    ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=sesame,content-length=3",             "OTEL_EXPORTER_OTLP_HEADERS has a part that is no header, so it is not sent: write name=value,name=value"),
    ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=sesame,a key=sesame",                 "OTEL_EXPORTER_OTLP_HEADERS has a part that is no header, so it is not sent: write name=value,name=value"),
    ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "0",                                       "OTEL_BSP_MAX_EXPORT_BATCH_SIZE is a number of spans, from 1; 2048 is used"),
    ("OTEL_SDK_DISABLED", "yes",                                                  "OTEL_SDK_DISABLED is true or false; false is used"),
    ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "lowmemory",            "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE is delta or cumulative; cumulative is used"),
    ("OTEL_RESOURCE_ATTRIBUTES", "team=a,b",                                      "OTEL_RESOURCE_ATTRIBUTES has a part that is no attribute, so it is not sent: write name=value,name=value"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "problem"), PROBLEMS)
def test_a_variable_that_cannot_be_used_is_named(name: str, value: str, problem: str) -> None:
    found = read_settings({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", name: value})
    assert found.problems == (problem,)
    assert len(found.endpoints) == 3


def test_messages_show_no_password_of_an_endpoint() -> None:
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": "https://ada:sesame@c:1/x?key=sesame"}
    (one, *_) = read_settings(env).endpoints.values()
    assert "sesame" not in one.shown
    assert read_settings({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://[::1]:4318"}).endpoints[
        "traces"
    ].shown == ("http://[::1]:4318/v1/traces")
    assert "api" not in repr(read_settings({**env, "OTEL_EXPORTER_OTLP_HEADERS": "k=api"}))


texts = st.text(max_size=300) | st.just("\udce4\x00x")


@given(
    name=texts, path=texts, title=texts, error=st.sampled_from(["", "exit"]), message=texts,
    number=st.integers(-(1 << 70), 1 << 70), share=st.floats(allow_nan=False), client=st.booleans(),
    parent=st.sampled_from([b"", b"\x01" * 8]),
)  # fmt: skip
def test_a_span_decodes_to_what_was_encoded(
    name: str, path: str, title: str, error: str, message: str, number: int, share: float, client: bool, parent: bytes
) -> None:  # fmt: skip
    def plain(text: str) -> str:
        return text.encode("utf-8", "replace").decode()

    own = spans.Span(
        b"\x02" * 8, parent, name, "shell", path, title, "done", 1.5, 2.25, error, message,
        (("n", number), ("f", share), ("t", title), ("l", ("a", "b")), ("b", True)), client,
    )  # fmt: skip
    encoder = Encoder(TRACE, {"a": "b"}, is_sampled=True, tracestate="v=1")
    for _ in range(2):  # the second time parts of it are known
        (span,) = ScopeSpans.FromString(encoder.span(own)).spans
        assert (span.trace_id.hex(), span.span_id, span.parent_span_id) == (TRACE, own.id, parent)
        assert (span.name, span.trace_state, span.flags) == (plain(name), "v=1", 1)
        assert span.kind == (Span.SPAN_KIND_CLIENT if client else Span.SPAN_KIND_INTERNAL)
        assert (span.start_time_unix_nano, span.end_time_unix_nano) == (
            1_500_000_000,
            2_250_000_000,
        )
        found = attributes(span)
        big = number if -(1 << 63) <= number < 1 << 63 else float(number)
        assert (found["n"], found["f"], found["t"], found["l"], found["b"]) == (big, share, plain(title), ["a", "b"], True)  # fmt: skip
        if path:
            assert (found["plait.step.path"], found["plait.step.title"]) == (
                plain(path),
                plain(title),
            )
        assert found.get("error.type", "") == error
        assert (span.status.code, span.status.message) == (
            (2, plain(message)) if error else (0, "")
        )


@pytest.mark.parametrize(
    "written",
    ["on", "{endpoint: localhost}", "{endpoint: 'http://c', extra: 1}", "{content: maybe}"],
)
def test_a_setting_that_means_nothing_is_reported(written: str) -> None:
    node = parse(f"telemetry: {written}\n", "plait.yaml")
    assert isinstance(node, MappingNode)
    with pytest.raises(DocumentError) as caught:
        require_valid_settings(node)
    assert caught.value.what == (
        "'telemetry' is a map with 'endpoint', an http:// or https:// URL, and 'content'"
    )
