"""What is sent where: the standard `OTEL_…` variables, and the project's setting `telemetry`.

The meaning of the variables is that of the OpenTelemetry specification.  What cannot be used is
named in `problems` and otherwise ignored: telemetry never stops a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from plait.adapters.otel import names
from plait.core.hints import Final, Literal, TypeAlias
from plait.core.patterns import lazy_pattern
from plait.core.records import dataclass, field
from plait.engine.trace import RemoteParent

Signal: TypeAlias = Literal["traces", "metrics", "logs"]
SIGNALS: Final[tuple[Signal, ...]] = ("traces", "metrics", "logs")
DEFAULT_ENDPOINT: Final = "http://localhost:4318"
_OTLP: Final = "OTEL_EXPORTER_OTLP_"

TIMEOUT: Final = 10.0
"""Seconds for one request."""
END_TIMEOUT: Final = 3.0
"""Seconds that the end of a run waits for the collector."""
SCHEDULE: Final = 1.0
"""Seconds between two looks at the journal."""
BATCH: Final = 2048
"""Spans in one request."""
METRIC_INTERVAL: Final = 60.0
LARGEST: Final = 1e9
"""Of all numbers; as milliseconds eleven days, and no more than a thread can wait."""

SAMPLERS: Final = ("always_on", "always_off", "traceidratio")


@dataclass(frozen=True, slots=True)
class Endpoint:
    url: str
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    timeout: float = TIMEOUT
    gzip: bool = False
    certificate: str = ""
    client_certificate: str = ""
    client_key: str = ""

    @property
    def shown(self) -> str:
        """The URL without user, password and query, for messages."""
        parts = urlsplit(self.url)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        port = f":{parts.port}" if parts.port else ""
        return f"{parts.scheme}://{host}{port}{parts.path}"


@dataclass(frozen=True, slots=True)
class Settings:
    endpoints: Mapping[Signal, Endpoint]
    content: bool = False
    sampler: str = "parentbased_always_on"
    ratio: float = 1.0
    resource: Mapping[str, str] = field(default_factory=dict)
    schedule: float = SCHEDULE
    batch: int = BATCH
    metric_interval: float = METRIC_INTERVAL
    end_timeout: float = END_TIMEOUT
    delta: bool = False
    problems: tuple[str, ...] = ()


def is_disabled(environ: Mapping[str, str]) -> bool:
    return environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def names_collector(environ: Mapping[str, str]) -> bool:
    """Do the variables ask for telemetry?"""
    if any(environ.get(_name(signal, "ENDPOINT")) for signal in ("", *SIGNALS)):
        return True
    wanted = (environ.get(f"OTEL_{signal.upper()}_EXPORTER", "") for signal in SIGNALS)
    return any("otlp" in one.split(",") for one in wanted)


def read_settings(
    environ: Mapping[str, str], *, endpoint: str = "", content: bool = False
) -> Settings:
    """Return what the variables and the project's `endpoint` and `content` say."""
    problems: list[str] = []
    if names_collector(environ):
        endpoint = ""  # the variables win, and only then their headers are sent
    sampler = environ.get("OTEL_TRACES_SAMPLER", "").strip().lower() or "parentbased_always_on"
    if sampler.removeprefix("parentbased_") not in SAMPLERS:
        problems.append(
            f"OTEL_TRACES_SAMPLER names no known sampler; known: {', '.join(SAMPLERS)}, "
            "each also after parentbased_"
        )
        sampler = "parentbased_always_on"
    ratio = _number(environ, "OTEL_TRACES_SAMPLER_ARG", 1.0, problems)
    if not 0 <= ratio <= 1:
        problems.append("OTEL_TRACES_SAMPLER_ARG is a number from 0 to 1; 1 is used")
        ratio = 1.0
    timeout = _milliseconds(environ, "OTEL_BSP_EXPORT_TIMEOUT", END_TIMEOUT, problems)
    batch = int(_number(environ, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", BATCH, problems))
    if batch < 1:
        problems.append(
            f"OTEL_BSP_MAX_EXPORT_BATCH_SIZE is a number of spans, from 1; {BATCH} is used"
        )
        batch = BATCH
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() not in ("", "true", "false"):
        problems.append("OTEL_SDK_DISABLED is true or false; false is used")
    temporality = _name("metrics", "TEMPORALITY_PREFERENCE")
    preference = environ.get(temporality, "").strip().lower()
    if preference not in ("", "cumulative", "delta"):
        problems.append(f"{temporality} is delta or cumulative; cumulative is used")
    return Settings(
        _endpoints(environ, endpoint, problems),
        content,
        sampler,
        ratio,
        _resource(environ, problems),
        max(0.01, _milliseconds(environ, "OTEL_BSP_SCHEDULE_DELAY", SCHEDULE, problems)),
        batch,
        max(0.1, _milliseconds(environ, "OTEL_METRIC_EXPORT_INTERVAL", METRIC_INTERVAL, problems)),
        timeout,
        preference == "delta",
        tuple(dict.fromkeys(problems)),
    )


def should_sample(settings: Settings, trace_id: str, parent: RemoteParent | None) -> bool:
    """Decide as the samplers of the SDK do: for a whole trace, by its id or by its parent."""
    sampler = settings.sampler
    if sampler.startswith("parentbased_") and parent is not None:
        return parent.is_sampled
    match sampler.removeprefix("parentbased_"):
        case "always_off":
            return False
        case "traceidratio":
            return int(trace_id[16:], 16) < round(settings.ratio * (1 << 64))
    return True


# ── helpers, in order of use ─────────────────────────────────────────────


def _name(signal: str, what: str) -> str:
    return f"{_OTLP}{signal.upper()}_{what}" if signal else f"{_OTLP}{what}"


def _number(environ: Mapping[str, str], name: str, default: float, problems: list[str]) -> float:
    text = environ.get(name, "").strip()
    if not text:
        return default
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if 0 <= number <= LARGEST:
        return number
    problems.append(f"{name} is no number from 0 to {LARGEST:g}; {default:g} is used")
    return default


def _milliseconds(
    environ: Mapping[str, str], name: str, default: float, problems: list[str]
) -> float:
    return _number(environ, name, default * 1000, problems) / 1000


def _endpoints(
    environ: Mapping[str, str], project: str, problems: list[str]
) -> dict[Signal, Endpoint]:
    found: dict[Signal, Endpoint] = {}
    for signal in SIGNALS:
        wanted = environ.get(f"OTEL_{signal.upper()}_EXPORTER", "").strip() or "otlp"
        if wanted == "none":
            continue
        if "otlp" not in wanted.split(","):
            problems.append(f"OTEL_{signal.upper()}_EXPORTER is otlp or none; nothing is sent")
            continue
        endpoint = _endpoint(environ, signal, project, problems)
        if endpoint is not None:
            found[signal] = endpoint
    return found


def _endpoint(
    environ: Mapping[str, str], signal: Signal, project: str, problems: list[str]
) -> Endpoint | None:
    def name(what: str) -> str:
        own = _name(signal, what)
        return own if environ.get(own, "").strip() else _name("", what)

    def get(what: str) -> str:
        return environ.get(name(what), "").strip()

    own = environ.get(_name(signal, "ENDPOINT"), "").strip()
    base = project or environ.get(_name("", "ENDPOINT"), "").strip() or DEFAULT_ENDPOINT
    url = own if own and not project else f"{base.rstrip('/')}/v1/{signal}"
    origin = "telemetry.endpoint" if project else _name(signal if own else "", "ENDPOINT")
    if not is_url(url):
        problems.append(f"{origin} is no http:// or https:// URL; no {signal} are sent")
        return None
    protocol = "" if project else get("PROTOCOL")
    if protocol not in ("", "http/protobuf"):
        problems.append(
            f"{name('PROTOCOL')}: Plait sends http/protobuf only, so no {signal} are sent"
        )
        return None
    timeout = _milliseconds(environ, name("TIMEOUT"), TIMEOUT, problems) or TIMEOUT
    if project:  # keys of the environment are for a collector of the environment
        return Endpoint(url, timeout=timeout)
    if get("COMPRESSION") not in ("", "none", "gzip"):
        problems.append(f"{name('COMPRESSION')} is gzip or none; nothing is compressed")
    headers = _headers(get("HEADERS"))
    if len(headers) < _part_count(get("HEADERS")):
        problems.append(f"{name('HEADERS')} has a part that is no header, {_NOT_SENT}")
    return Endpoint(
        url,
        headers,
        timeout,
        get("COMPRESSION") == "gzip",
        get("CERTIFICATE"),
        get("CLIENT_CERTIFICATE"),
        get("CLIENT_KEY"),
    )


def is_url(text: str) -> bool:
    """Can a collector be at this URL?"""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _pairs(text: str) -> dict[str, str]:
    """Read `name=value,…` with percent-encoded values; what has no `=` is left out."""
    found = (one.partition("=") for one in text.split(",") if "=" in one)
    return {name.strip(): unquote(value.strip()) for name, _, value in found if name.strip()}


_NOT_SENT: Final = "so it is not sent: write name=value,name=value"


def _part_count(text: str) -> int:
    """Return how many different names there should be."""
    return len({one.partition("=")[0].strip() for one in text.split(",") if one.strip()})


_HEADER_NAME: Final = lazy_pattern(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FRAMING: Final = frozenset({"connection", "content-length", "transfer-encoding"})
"""Headers that say where a request ends: Plait writes them itself."""


def _headers(text: str) -> tuple[tuple[str, str], ...]:
    plain = _pairs(text).items()
    return tuple(
        (name.lower(), value)
        for name, value in plain
        if _HEADER_NAME.fullmatch(name)
        and name.lower() not in _FRAMING
        and value.isprintable()
        and value.isascii()
    )


def _resource(environ: Mapping[str, str], problems: list[str]) -> dict[str, str]:
    written = environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    given = _pairs(written)
    if len(given) < _part_count(written):
        problems.append(f"OTEL_RESOURCE_ATTRIBUTES has a part that is no attribute, {_NOT_SENT}")
    service = environ.get("OTEL_SERVICE_NAME", "").strip()
    found = {"service.name": names.SERVICE, "telemetry.sdk.language": "python", **given}
    return {**found, "service.name": service} if service else found
