"""Trace ids of a run, derived from the run and the paths of its steps.

Every attempt of a run derives the same ids, so a run that was killed and resumed is one trace, and
a process can be told the id of its step before that step has ended.

A *leg* of a run ends when the run ends as done or failed.  A run attempt after that starts the next
leg, in which steps run again under new ids.  A kill or Ctrl-C ends no leg: the steps around the one
that was cut off end in a later run attempt, under the ids that their children already name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

from plait.core.digests import blake2b
from plait.core.hints import Final
from plait.core.patterns import lazy_pattern
from plait.core.records import dataclass, field
from plait.engine.events import Event, RunEnded, RunStarted

ID_BYTES: Final = 8
TRACEPARENT: Final = "TRACEPARENT"
"""The environment variable, and in lower case the header, by W3C Trace Context."""
TRACESTATE: Final = "TRACESTATE"
SAMPLED: Final = 1
_TRACEPARENT: Final = lazy_pattern(
    r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?"
)
_MOST_STATE: Final = 512
"""Characters of a trace state; a longer one is not passed on."""


def make_trace_key(run: str, started: str) -> bytes:
    """Return the key of a run's span ids; in hex it is the trace id, unless a parent gives one."""
    return blake2b(f"{run}\n{started}".encode("utf-8", "replace"), digest_size=16).digest()


def span_id(key: bytes, path: str, mark: str = "") -> bytes:
    """Return the id of the span of a step; `mark` distinguishes several spans of one path."""
    text = f"{path}\n{mark}" if mark else path
    hasher = _keyed_hasher(key).copy()
    hasher.update(text.encode("utf-8", "surrogatepass"))
    return hasher.digest()


@lru_cache(8)
def _keyed_hasher(key: bytes) -> blake2b:
    """A copy of it costs half of a new one."""
    return blake2b(digest_size=ID_BYTES, key=key)


def leg_mark(leg: int) -> str:
    return f"leg {leg}" if leg else ""


def repeat_mark(run_attempt: int) -> str:
    """Mark a step that had ended in its leg, and ran again in a later run attempt."""
    return f", run attempt {run_attempt}"


@dataclass(frozen=True, slots=True)
class RemoteParent:
    """The span around the run, in the process that started Plait."""

    trace_id: str
    span_id: str
    is_sampled: bool


def parse_traceparent(text: str) -> RemoteParent | None:
    """Return what a `traceparent` names; None: it is not valid, so it is ignored."""
    found = _TRACEPARENT.fullmatch(text.strip().lower())
    if found is None or found[1] == "ff" or (found[1] == "00" and found[5]):
        return None
    if not found[2].strip("0") or not found[3].strip("0"):
        return None
    return RemoteParent(found[2], found[3], bool(int(found[4], 16) & SAMPLED))


def valid_tracestate(text: str) -> str:
    """Return a trace state that can be passed on; empty: there is none."""
    state = text.strip()
    is_plain = state.isascii() and state.isprintable()
    return state if is_plain and len(state) <= _MOST_STATE else ""


@dataclass(frozen=True, slots=True)
class RunAttempts:
    """Which attempt of the run this is, by the starts and ends of the run so far."""

    leg: int = 0
    number: int = 0
    """The run attempt, within its leg, from 1."""
    has_ended: bool = False

    def after_start(self) -> RunAttempts:
        if self.has_ended:
            return RunAttempts(self.leg + 1, 1)
        return RunAttempts(self.leg, self.number + 1)

    def after(self, event: Event) -> RunAttempts:
        match event:
            case RunStarted():
                return self.after_start()
            case RunEnded(status=status):
                return RunAttempts(self.leg, self.number, status != "interrupted")
        return self

    @classmethod
    def of(cls, events: Iterable[Event]) -> RunAttempts:
        attempts = cls()
        for event in events:
            attempts = attempts.after(event)
        return attempts


@dataclass(frozen=True, slots=True)
class RunTrace:
    """The trace of a run, for the steps that pass it on to processes, requests and MCP calls."""

    key: bytes
    trace_id: str
    is_sampled: bool
    attempts: RunAttempts = RunAttempts(0, 1)
    tracestate: str = ""
    has_ended: Callable[[str], bool] = field(default=lambda _: False, repr=False)
    """Does the journal hold an end of the step at a path?  Asked in later run attempts only."""

    def traceparent(self, path: str, retries: str = "") -> str:
        """Return the `traceparent` for what a step starts; `retries`: see `StepContext`."""
        leg, run_attempt = self.attempts.leg, self.attempts.number
        mark = retries
        if leg or run_attempt > 1:
            is_repeated = run_attempt > 1 and (bool(retries) or self.has_ended(path))
            mark = leg_mark(leg) + (repeat_mark(run_attempt) if is_repeated else "") + retries
        own = span_id(self.key, path, mark).hex()
        return f"00-{self.trace_id}-{own}-{SAMPLED if self.is_sampled else 0:02x}"

    def environment(self, path: str, retries: str = "") -> dict[str, str]:
        """Return the variables for a process; an empty one hides a state of another trace."""
        return {TRACEPARENT: self.traceparent(path, retries), TRACESTATE: self.tracestate}

    def headers(self, path: str, retries: str = "") -> tuple[tuple[str, str], ...]:
        """Return the same as headers of a request, or as `_meta` of an MCP call."""
        return tuple(
            (name.lower(), value)
            for name, value in self.environment(path, retries).items()
            if value
        )
