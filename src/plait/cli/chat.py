"""`plait chat`: a person talks with a model, as a directive says, and watches what it does.

At a terminal the text appears as the model says it, each call of a tool is one line, and a tool
that the directive does not permit is asked about.  Ctrl-C stops the answer and not the chat.  In a
pipe each line of standard input is one thing said, answers are plain text, and nobody is asked.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from plait.agents.turns import tool_call_title
from plait.cli.project import add_project
from plait.cli.trust_prompt import ask_for_trust, is_interactive
from plait.core.errors import InputError
from plait.core.hints import TYPE_CHECKING, Final, TextIO
from plait.core.records import replace
from plait.core.values import Json, json_text
from plait.engine.event_bus import StopSignal
from plait.engine.events import EventRecord, ModelText, Note, StepFinished, StepStarted
from plait.engine.limits import Limits, UsageTally
from plait.engine.outcome import Failure, Succeeded
from plait.views.format import clean_block, one_line, sign
from plait.views.lines import usage_line
from plait.views.summary import Result
from plait.views.terminal import paint_for

if TYPE_CHECKING:
    import argparse

    from plait.cli.arguments import Parser
    from plait.lang.loaded import LoadedFlow

EXAMPLES: Final = (
    "plait chat review.md -i file=src/app.py",
    "plait chat team/review < questions.txt",
)
PATIENCE: Final = 5.0
"""Seconds to wait for what was said to be shown, before something else is written."""
HELP: Final = "/quit ends the chat; Ctrl-C stops an answer"


def configure(parser: Parser) -> None:
    parser.add_argument("directive", metavar="DIRECTIVE", help="a file, or the id of a directive")
    parser.add_argument(
        "-i",
        "--input",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="one input (again for more)",
    )
    parser.add_argument("--inputs", metavar="F", help="inputs from a JSON or YAML file; -i wins")
    add_project(parser, lockable=False)


def run(options: argparse.Namespace) -> int:
    from plait.app import runs as flows
    from plait.cli.project import require_folder
    from plait.cli.run import parse_inputs

    require_folder(options.project)
    if options.inputs == "-":
        raise InputError(
            "standard input is what you say", fix="name a file for --inputs", code="arguments"
        )
    wanted = flows.Options(inputs=parse_inputs(options.inputs, options.input))
    person = ChatTerminal(sys.stdin, sys.stdout, sys.stderr, is_there=is_interactive())
    ask = ask_for_trust if person.is_there else None
    company = flows.RunObservers([person.watch], person.stop, ask)
    with person.stopping_by_keys():
        result = flows.run_flow(
            options.directive,
            wanted,
            project=options.project,
            company=company,
            adapt=person.make_chat_flow,
        )
    return person.leave(result)


class ChatTerminal:
    """Whoever sits at the other end: hears, speaks, consents, interrupts."""

    def __init__(self, stdin: TextIO, stdout: TextIO, stderr: TextIO, *, is_there: bool) -> None:
        self.is_there = is_there
        self.stop = StopSignal()
        self._in, self._out, self._err = stdin, stdout, stderr
        self._paint = paint_for(stderr)
        self._asked = UsageTally()
        self._heard = threading.Condition()
        self._ends = 0
        self._expected = 0
        self._calls: set[str] = set()
        self._at_line_start = True
        self._prompting = False
        self._consenting = threading.Lock()
        self._writing = threading.Lock()
        self._is_deciding = False
        self._unsaid: list[tuple[str, str]] = []
        """What happened while the person was asked for consent."""
        self._always: set[str] = set()
        self._told: set[str] = set()
        """Failures that the person knows of."""

    def make_chat_flow(self, loaded: LoadedFlow) -> LoadedFlow:
        """The directive as a chat: what its author limits is for the whole of it.

        But not the time, since that is also the person's, and not what nobody has written.
        """
        from plait.app.flow_source import CHAT
        from plait.program.chat import Chat
        from plait.program.program import DirectiveProgram

        program = loaded.program
        if not isinstance(program, DirectiveProgram):
            fix = "name a Markdown file, or run this one: plait run"
            raise InputError(
                "only a directive can be talked with", loaded.path, fix, code="no-directive"
            )
        said, consent = program.limits, self.consent if self.is_there else None
        turns = program.conversation.limits.turns if said.turns is None else None
        of_each = Limits(turns=turns, seconds=said.seconds, depth=said.depth)
        first = replace(program.conversation, consent=consent, limits=of_each)
        whole = replace(said, seconds=None, depth=None)
        return replace(
            loaded, program=Chat(program.name, first, self.listen), limits=whole, kind=CHAT
        )

    # ── hearing ──────────────────────────────────────────────────────────

    def watch(self, stamped: EventRecord) -> None:
        """Called by one thread at a time."""
        self._asked.count(stamped.event)
        match stamped.event:
            case ModelText(text=""):
                with self._heard:
                    self._ends += 1
                    self._heard.notify_all()
            case ModelText(path=path, text=text) if path.count("/") == 1:
                self._say(
                    clean_block(text)
                )  # deeper down others speak: whoever a hook or a call asks
            case StepStarted(kind="call", title=title):
                self._line(f"· {one_line(title, None)}", "dim")
                with self._heard:
                    self._calls.add(title)
                    self._heard.notify_all()
            case StepFinished(kind="call", outcome=Succeeded({"failed": True, "output": str(why)})):
                self._line(f"  {one_line(why.splitlines()[0], None)}", "yellow")
            case Note(message=message):
                self._line(f"note: {one_line(message, None)}", "yellow")

    def _say(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
        self._at_line_start = text.endswith("\n")

    def _line(self, text: str, colour: str) -> None:
        """Something that is not said by the model: on the other stream, and on a line of its
        own.
        """
        with self._writing:
            if self._is_deciding:  # the line belongs to the person until there is an answer
                self._unsaid.append((text, colour))
                return
            self._end_line()
            print(self._paint(text, colour), file=self._err, flush=True)

    def _end_line(self) -> None:
        if not self._at_line_start:
            self._say("\n")

    # ── speaking ─────────────────────────────────────────────────────────

    def listen(self, failure: Failure | None) -> str | None:
        self._expected += 1
        with self._heard:
            self._heard.wait_for(lambda: self._ends >= self._expected, PATIENCE)
        self._end_line()
        if failure is not None:
            self._tell_failure(failure)
        elif self.is_there:
            self._line(usage_line(self._asked), "dim")
        while (line := self._read("> ")) is not None:
            if line == "/quit":
                return None
            if line.startswith("/"):
                self._line(HELP, "dim")
            elif line:
                return line
        return None

    def _read(self, prompt: str) -> str | None:
        """One line; None at the end of the input."""
        if self.is_there:
            self._err.write(self._paint(prompt, "bold"))
            self._err.flush()
        self._prompting = True
        try:
            line = self._in.readline()
        except KeyboardInterrupt:
            self._line("", "dim")
            self._line(HELP, "dim")
            return ""
        finally:
            self._prompting = False
        return line.strip() if line else None

    def _tell_failure(self, failure: Failure) -> None:
        self._told.add(failure.message)
        self._end_line()
        print(
            self._paint(f"{sign('failed')} {clean_block(failure.message)}", "red"),
            file=self._err,
            flush=True,
        )

    # ── consenting ───────────────────────────────────────────────────────

    def consent(self, tool_id: str, params: Mapping[str, Json]) -> bool:
        """`y` or `once` for this call, `a` for all of this tool in this chat; anything else is
        no.
        """
        title = tool_call_title(tool_id, dict(params))
        with self._heard:
            self._heard.wait_for(lambda: title in self._calls, PATIENCE)
        with self._consenting:
            if tool_id in self._always:
                return True
            # All of it: what the end of a long command does is what is permitted.
            whole = f"{tool_id} {json_text(dict(params))}" if params else tool_id
            answer = self._ask_decision(
                f"  {one_line(whole, None)} is not permitted: call it? y / N / always  "
            )
            if answer in ("a", "always"):
                self._always.add(tool_id)
            return answer in ("y", "yes", "once", "a", "always")

    def _ask_decision(self, question: str) -> str:
        with self._writing:
            self._is_deciding = True
        try:
            return (self._read(question) or "").lower()
        finally:
            with self._writing:
                self._is_deciding = False
                unsaid, self._unsaid = self._unsaid, []
            for text, colour in unsaid:
                self._line(text, colour)

    # ── interrupting ─────────────────────────────────────────────────────

    @contextmanager
    def stopping_by_keys(self) -> Iterator[None]:
        """Ctrl-C stops what the model says; twice, and all else that ends a program, ends the
        chat.
        """

        def interrupt(_number: int, _frame: object) -> None:
            if self._prompting:
                raise KeyboardInterrupt
            # Not here: whoever holds the lock of `stop` may be the one that is interrupted.
            threading.Thread(target=self.stop.ask, args=("SIGINT",), daemon=True).start()

        before = signal.getsignal(signal.SIGINT)
        signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def leave(self, result: Result) -> int:
        self._end_line()
        if result.failure is not None and result.failure.message not in self._told:
            self._tell_failure(result.failure)
        if self.is_there:
            self._line(f"{usage_line(self._asked)}   plait show {one_line(result.run)}", "dim")
        return result.exit_code
