"""What a run asks before it goes on, as forms for the user of a client (elicitation).

Three things are asked: was a step done that may run at most once and whose end is unknown, may a run
go on with an edited flow, and may the project run its files.  The older revisions ask the client
while a request waits.  In the newest the request is answered with the questions, and the client
sends it again with the answers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence

from plait.agents.tool_access import schema_errors
from plait.core.errors import InputError, PlaitError, TrustError
from plait.core.hints import Final, Protocol
from plait.core.records import dataclass
from plait.core.values import Json
from plait.mcp.protocol import Request
from plait.mcp.run_jobs import RunState

REPEAT: Final = "repeat"
DONE: Final = "done"
_ACCEPT: Final = "accept"
_MOST_FILES: Final = 50
"""Files of a project that the question about trust names."""


@dataclass(frozen=True, slots=True)
class Question:
    """A form with one field."""

    key: str
    """Names the question; another question of the same run has another key."""
    message: str
    field: Mapping[str, Json]
    """The schema of the field."""

    def params(self) -> dict[str, Json]:
        """Of `elicitation/create`."""
        return {"message": self.message, "requestedSchema": self._form()}

    def value(self, response: Json) -> Json:
        """What the user entered; None: the user declined."""
        if not isinstance(response, Mapping) or response.get("action") != _ACCEPT:
            return None
        content = response.get("content")
        wrong = schema_errors(dict(content) if isinstance(content, Mapping) else {}, self._form())
        if wrong:
            what = f"the answer to '{self.key}' does not fit its form: {'; '.join(wrong)}"
            raise InputError(what, code="schema-violation")
        return content["answer"] if isinstance(content, Mapping) else None

    def _form(self) -> dict[str, Json]:
        return {
            "type": "object",
            "properties": {"answer": dict(self.field)},
            "required": ["answer"],
        }


class InputRequired(Exception):
    """The client has to answer questions before the request can be performed."""

    def __init__(self, questions: Sequence[Question], known: Mapping[str, Json]) -> None:
        super().__init__("the client has to answer first")
        self.questions = questions
        self.known = known
        """What it has answered so far."""

    def requests(self) -> dict[str, Json]:
        """The questions in the form of the newest revision."""
        return {
            one.key: {"method": "elicitation/create", "params": one.params()}
            for one in self.questions
        }

    def result(self) -> dict[str, Json]:
        state = {"requestState": json.dumps(self.known)} if self.known else {}
        return {"resultType": "input_required", "inputRequests": self.requests(), **state}


class Answers(Protocol):
    """The user of a client, who can be asked."""

    def ask(self, questions: Sequence[Question]) -> dict[str, Json] | None:
        """Answers by the keys of the questions; None: the user declined one."""
        ...


class LiveAnswers:
    """Asks while the request waits.  `send` returns the response of the client, None if none came."""

    def __init__(self, send: Callable[[Mapping[str, Json]], Json]) -> None:
        self._send = send

    def ask(self, questions: Sequence[Question]) -> dict[str, Json] | None:
        return _collect(questions, lambda one: self._send(one.params()))


class SentAnswers:
    """Answers that came with the request; InputRequired if one is missing."""

    def __init__(self, known: Mapping[str, Json]) -> None:
        self._known = known

    @classmethod
    def of(cls, request: Request) -> SentAnswers:
        """Those of this request, and of its earlier rounds."""
        earlier: Json = {}
        state = request.params.get("requestState")
        if isinstance(state, str):
            try:
                earlier = json.loads(state)
            except (ValueError, RecursionError):
                earlier = {}
        known = earlier if isinstance(earlier, dict) else {}
        return cls({**known, **request.mapping("inputResponses")})

    def ask(self, questions: Sequence[Question]) -> dict[str, Json] | None:
        missing = [one for one in questions if one.key not in self._known]
        if missing:
            raise InputRequired(missing, self._known)
        return _collect(questions, lambda one: self._known[one.key])


def _collect(
    questions: Sequence[Question], find: Callable[[Question], Json]
) -> dict[str, Json] | None:
    found: dict[str, Json] = {}
    for one in questions:
        value = one.value(find(one))
        if value is None:
            return None
        found[one.key] = value
    return found


# ── questions ────────────────────────────────────────────────────────────


def once_question(state: RunState, path: str) -> Question:
    """Was a step done?  A step that is asked about again, after another try, has another key."""
    return Question(
        f"once:{state.progress.run_attempts}:{path}",
        f"Run {state.run} of {state.flow} was interrupted while step '{path}' ran. The step may "
        "run at most once, and it is not known whether it did its work. Find out; then choose: "
        f"'{DONE}' counts it as done, '{REPEAT}' runs it again.",
        {"type": "string", "enum": [DONE, REPEAT], "title": "What happens to the step"},
    )


def change_question(state: RunState, error: PlaitError) -> Question:
    """May a run go on with an edited flow?"""
    what = "; ".join(problem.what for problem in error.problems)
    return Question(
        f"changed:{state.progress.run_attempts}:{_digest(what)}",
        f"Run {state.run} of {state.flow} cannot simply continue: {what}. "
        "Continue with the flow as it is now? Changed steps, and all that follow them, run again.",
        {"type": "boolean", "title": "Accept the changes"},
    )


def is_change(error: PlaitError) -> bool:
    return all(problem.code == "changed" for problem in error.problems)


def may_trust(project: str, error: TrustError, answers: Answers | None) -> bool:
    """Ask whether the files of a project may run, and record a yes."""
    from plait.app.toolbox import toolbox
    from plait.tools.trust.decisions import TrustQuestion, project_files

    if answers is None or any(one.code != "not-trusted" for one in error.problems):
        return False
    brings = project_files(project)
    listed = ", ".join(brings[:_MOST_FILES])
    if len(brings) > _MOST_FILES:
        listed += f" and {len(brings) - _MOST_FILES} more"
    about = f"{TrustQuestion(project, (), brings)}\n{error.what}"
    question = Question(
        f"trust:{_digest(about, *brings)}",
        f"{about}\nIts files: {listed}\nTrust this project, so that its files may run?",
        {"type": "boolean", "title": "Trust the project"},
    )
    given = answers.ask([question])
    if not given or given[question.key] is not True:
        return False
    toolbox(project).trust.trust_project(origin="asked")
    return True


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()[:16]
