"""Every error of Plait: what is wrong, where, and what to do.

    PlaitError                    base; exit code 1 unless a subclass says otherwise
    ├── InputError                the user's file or arguments are wrong (2)
    │   ├── TemplateError         a template cannot be used as it is written
    │   │   ├── TemplateSyntaxError
    │   │   ├── MissingNamesError     strict mode; all of them, `.names`
    │   │   └── PromptTemplateError   `.missing_variables`, `.template`
    │   ├── ShellRefusedError     a value is used where it could become code; `.code`
    │   ├── ValueRefusedError     this value cannot be passed to that sink
    │   ├── DocumentError         a file that is not the YAML we read
    │   └── ConditionError        a condition that means nothing
    ├── LimitError                a documented bound was exceeded (2)
    ├── TrustError                something may not run before you trust it (3); `.code`
    ├── ProcessError              a process could not be started or had to be ended (1)
    ├── GuardianError             the guardian died with all its processes (1); not an outcome
    ├── RequestError              an HTTP request was refused, failed or timed out (1); `.code`
    ├── EnsembleError             an ensemble failed (1); `.output` is its partial result
    ├── MachineError              out of files, processes, memory, disk or rights (1); `.code`
    ├── JournalError              the record of a run cannot be written or read (1); `.code`
    └── InternalError             our bug (4)

An error may hold several problems; it prints all of them.  An error holds names and the author's
text, never a value, so it cannot leak a secret.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from plait.core.hints import Final
from plait.core.records import dataclass
from plait.core.source import Span, draw


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem; `also` holds further places of the same problem."""

    what: str
    where: Span | str | None = None
    fix: str | None = None
    also: tuple[Span, ...] = ()
    code: str | None = None

    def __str__(self) -> str:
        lines = [f"{self.where}: {self.what}" if self.where else self.what]
        if isinstance(self.where, Span):
            lines.append(draw([self.where, *self.also]))
        if self.fix:
            lines.append(f"fix: {self.fix}")
        return "\n".join(lines)

    @property
    def place(self) -> tuple[str, int, int]:
        """Sort key: file, line, column."""
        if isinstance(self.where, Span):
            return (self.where.place.source.name, *self.where.position)
        return (self.where or "", 0, 0)


class PlaitError(Exception):
    """An error on which the user can act: `.what`, `.where`, `.fix`, `.problems`."""

    exit_code = 1

    def __init__(
        self,
        what: str,
        where: Span | str | None = None,
        fix: str | None = None,
        *,
        also: Sequence[Span] = (),
        code: str | None = None,
    ) -> None:
        self.problems: tuple[Problem, ...] = (Problem(what, where, fix, tuple(also), code),)
        super().__init__(what)

    @classmethod
    def together(cls, problems: Iterable[Problem]) -> PlaitError:
        """One error for all problems, in the order of their places."""
        ordered = sorted(problems, key=lambda problem: problem.place)
        first = ordered[0]
        error = cls(first.what, first.where, first.fix, also=first.also, code=first.code)
        error.problems = tuple(ordered)
        return error

    @property
    def what(self) -> str:
        return self.problems[0].what

    @property
    def where(self) -> Span | str | None:
        return self.problems[0].where

    @property
    def fix(self) -> str | None:
        return self.problems[0].fix

    @property
    def code(self) -> str | None:
        """A short stable name of the problem, for programs and SARIF."""
        return self.problems[0].code

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


class InputError(PlaitError):
    """The user's file or arguments are wrong."""

    exit_code = 2


class TemplateError(InputError):
    """A template cannot be used as it is written."""


class TemplateSyntaxError(TemplateError):
    """A placeholder is malformed, or uses a format or filter that does not exist."""


class MissingNamesError(TemplateError):
    """Names that the scope does not know, in the order of appearance."""

    names: tuple[str, ...] = ()


class PromptTemplateError(TemplateError):
    """Variables of a prompt that were not given."""

    def __init__(self, what: str, missing_variables: Sequence[str], template: str) -> None:
        super().__init__(what, code="missing-variables")
        self.missing_variables = list(missing_variables)
        self.template = template


class ShellRefusedError(InputError):
    """A value is used where a shell could read it as code."""


class ValueRefusedError(InputError):
    """This value cannot be passed to that place."""


class DocumentError(InputError):
    """A file that is not valid YAML, as Plait reads it."""


class ConditionError(InputError):
    """A condition that is not valid."""


class LimitError(PlaitError):
    """A documented bound was exceeded."""

    exit_code = 2


class TrustError(PlaitError):
    """Something may not run: it is not trusted, or its signature is wrong."""

    exit_code = 3


class ProcessError(PlaitError):
    """A process could not be started or had to be stopped; `.ended` is its state after a
    timeout.
    """

    ended: object = None


class GuardianError(PlaitError):
    """The guardian died, and all its processes with it. The run stops and can be resumed.

    It is not a `ProcessError`, so code that handles a failed process does not record it as one.
    """


class RequestError(PlaitError):
    """An HTTP request was refused before it was sent, or got no complete response.

    A response with an error status is not such an error: it is a response.
    """


class EnsembleError(PlaitError):
    """An ensemble failed; `.output` holds the results of its tasks so far."""

    output: object = None


class MachineError(PlaitError):
    """The machine lacks a resource. It is not an outcome of a step; the run can be resumed."""


class JournalError(PlaitError):
    """The journal of a run cannot be written or read; everything already in it is safe."""

    holds_last = False
    """True if the journal holds the last event nevertheless, and nothing after it."""


class InternalError(PlaitError):
    """A bug of Plait."""

    exit_code = 4


NO_OUTCOMES: Final = (InternalError, TrustError, JournalError, GuardianError, MachineError)
"""Errors that are not an outcome of a step: the run stops, and the step runs again later."""


def closest_name(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Return the known name that was probably meant; a higher `cutoff` requires more similarity."""
    from difflib import get_close_matches  # only errors need it, and it is slow to import

    found = get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return found[0] if found else None


def with_article(word: str) -> str:
    return f"{'an' if word[:1] in 'aeiou' else 'a'} {word}"


def format_names(names: Iterable[str], *, most: int = 12) -> str:
    """List names for a message in the given order, cut with a count."""
    names = list(names)
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def shorten(text: str, most: int) -> str:
    """Shorten a text to at most this many characters; `…` replaces the rest."""
    return text if len(text) <= most else text[: most - 1] + "…"
