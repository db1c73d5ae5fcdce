"""The buttons of a run: each is one `plait` command, and shows it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from plait.app.flow_source import INPUT_ENV_PREFIX
from plait.core.hints import Final
from plait.core.records import dataclass
from plait.engine.outcome import ALL_FAILED
from plait.views.run_watch import RunWatch

ACTIONS: Final = ("stop", "resume", "retry")
MOST_QUESTIONS: Final = 20


@dataclass(frozen=True, slots=True)
class Question:
    """A step that may run at most once and whose end is not known."""

    path: str
    title: str
    item: str = ""
    """The title of the item that it is in."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Something that a person may do with a run."""

    action: str
    label: str
    words: tuple[str, ...]
    """The command, without `plait`."""
    why: str = ""
    questions: Sequence[Question] = ()
    secrets: Sequence[str] = ()
    """Names of inputs that the run does not record: they are needed again."""

    @property
    def command(self) -> str:
        return shlex.join(("plait", *self.words, *(("-i", "@-") if self.secrets else ())))


def find_offers(
    watch: RunWatch,
    project: str,
    *,
    can_act: bool,
    questions: Sequence[Question] = (),
    secrets: Sequence[str] = (),
) -> list[Offer]:
    """What can be done with a run now."""
    if not can_act:
        return []
    where = ("--project", project)
    run, status = watch.run, watch.status
    if status == "running":
        return [Offer("stop", "Stop", ("stop", run, *where), "what is done stays recorded")]
    found = []
    failed = sum(part.group.failure_count for part in watch.progress.maps)
    failure = watch.progress.failure
    is_over = failure is not None and failure.kind == ALL_FAILED  # only a retry helps
    if status in ("interrupted", "failed") and not is_over:
        found.append(
            Offer(
                "resume",
                "Resume",
                ("resume", run, *where),
                "recorded steps are not repeated",
                questions,
                secrets,
            )
        )
    if failed:
        items = "item" if failed == 1 else "items"
        words = ("retry", run, "--failed", *where)
        why = ""
        if secrets:  # `plait retry` takes no inputs
            names = " ".join(f"{INPUT_ENV_PREFIX}{name}" for name in secrets)
            why = f"needs secrets of the run: set {names}, then start plait web again"
        found.append(Offer("retry", f"Retry {failed} failed {items}", words, why))
    return found
