"""`plait chat`: a user talks with a model, as a directive defines it.

At a terminal the text appears as the model writes it, each tool call is one line, and Plait asks
the user about a tool that the directive does not permit. Ctrl-C stops the answer, not the chat. In
a pipe each line of standard input is one message, answers are plain text, and Plait asks nothing.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from plait.cli.project import add_project, require_folder
from plait.cli.run import add_run_inputs, parse_inputs
from plait.cli.trust_prompt import ask_for_trust
from plait.core.errors import InputError
from plait.core.hints import TYPE_CHECKING, Final, TextIO
from plait.core.records import replace
from plait.core.values import Json, json_text
from plait.views.terminal import is_interactive

if TYPE_CHECKING:
    import argparse

    from plait.cli.arguments import Parser
    from plait.engine.events import EventRecord
    from plait.engine.outcome import Failure
    from plait.lang.loaded import LoadedFlow
    from plait.views.summary import Result

EXAMPLES: Final = (
    "plait chat review.md -i file=src/app.py",
    "plait chat team/review < questions.txt",
)
HELP: Final = "/quit ends the chat; Ctrl-C stops an answer"


def configure(parser: Parser) -> None:
    parser.add_argument("directive", metavar="DIRECTIVE", help="a file, or the id of a directive")
    add_run_inputs(parser, "one input")
    add_project(parser, lockable=False)


def run(options: argparse.Namespace) -> int:
    from plait.app import runs as flows

    require_folder(options.project)
    if options.inputs == "-" or "@-" in options.input:
        raise InputError(
            "standard input is what you say", fix="name a file: -i @inputs.json", code="arguments"
        )
    wanted = flows.Options(inputs=parse_inputs(options.inputs, options.input))
    person = ChatTerminal(sys.stdin, sys.stdout, sys.stderr, is_there=is_interactive())
    ask = ask_for_trust if person.is_there else None
    observers = flows.RunObservers([person.watch], person.stop, ask)
    with person.stop_on_keys():
        result = flows.run_flow(
            options.directive,
            wanted,
            project=options.project,
            observers=observers,
            adapt=person.make_chat_flow,
        )
    return person.leave(result)


class ChatTerminal:
    """The user of a chat: reads what they type, asks for consent, handles Ctrl-C."""

    def __init__(self, stdin: TextIO, stdout: TextIO, stderr: TextIO, *, is_there: bool) -> None:
        from plait.engine.stop import StopSignal
        from plait.views.chat import ChatView

        self.is_there = is_there
        """A person sits at the terminal; otherwise standard input is a pipe."""
        self.stop = StopSignal()
        self._in = stdin
        self._view = ChatView(stdout, stderr)
        self._answers = 0
        self._is_reading = False
        self._consenting = threading.Lock()
        self._always_allowed: set[str] = set()

    def watch(self, record: EventRecord) -> None:
        """Show an event; called by one thread at a time."""
        self._view.watch(record)

    def make_chat_flow(self, loaded: LoadedFlow) -> LoadedFlow:
        """Make a chat of the directive; its limits apply to the whole chat.

        Limits of time and depth, and the default limit of turns, apply to each answer: the user
        takes time too.
        """
        from plait.app.flow_source import CHAT
        from plait.engine.limits import Limits
        from plait.program.chat import Chat

        directive = loaded.program.directive
        if directive is None:
            fix = "name a Markdown file, or run this one: plait run"
            raise InputError(
                "only a directive can be talked with", loaded.path, fix, code="no-directive"
            )
        limits, consent = directive.limits, self.consent if self.is_there else None
        turns = directive.agent.limits.turns if limits.turns is None else None
        of_each = Limits(turns=turns, seconds=limits.seconds, depth=limits.depth)
        first = replace(directive.agent, consent=consent, limits=of_each)
        whole = replace(limits, seconds=None, depth=None)
        chat = replace(
            loaded.program,
            kind=CHAT,
            body=Chat(first, self.listen),
            limits=whole,
            directive=replace(directive, agent=first, limits=whole),
        )
        return replace(loaded, program=chat)

    def listen(self, failure: Failure | None) -> str | None:
        """Return the user's next input, after an answer or a failure; None ends the chat."""
        self._answers += 1
        self._view.wait_for_answer(self._answers)
        self._view.end_line()
        if failure is not None:
            self._view.failure(failure)
        elif self.is_there:
            self._view.usage()
        while (line := self._read("> ")) is not None:
            if line == "/quit":
                return None
            if line.startswith("/"):
                self._view.line(HELP, "dim")
            elif line:
                return line
        return None

    def _read(self, prompt: str) -> str | None:
        """Read one line; None at the end of the input."""
        if self.is_there:
            self._view.prompt(prompt)
        self._is_reading = True
        try:
            line = self._in.readline()
        except KeyboardInterrupt:
            self._view.line("", "dim")
            self._view.line(HELP, "dim")
            return ""
        finally:
            self._is_reading = False
        return line.strip() if line else None

    def consent(self, tool_id: str, params: Mapping[str, Json]) -> bool:
        """Ask for consent: `y` or `once` allows this call, `a` all calls of this tool in this chat;
        anything else is no.
        """
        from plait.agents.turns import tool_call_title
        from plait.views.format import one_line

        self._view.wait_for_call(tool_call_title(tool_id, dict(params)))
        with self._consenting:
            if tool_id in self._always_allowed:
                return True
            # Show the whole call: the end of a long command is permitted too.
            call = f"{tool_id} {json_text(dict(params))}" if params else tool_id
            question = f"  {one_line(call, None)} is not permitted: call it? y / N / always  "
            with self._view.question():
                answer = (self._read(question) or "").lower()
            if answer in ("a", "always"):
                self._always_allowed.add(tool_id)
            return answer in ("y", "yes", "once", "a", "always")

    @contextmanager
    def stop_on_keys(self) -> Iterator[None]:
        """Ctrl-C stops an answer; twice, and other signals, end the chat."""

        def interrupt(_number: int, _frame: object) -> None:
            if self._is_reading:
                raise KeyboardInterrupt
            # In a thread: the code that this handler interrupts may hold the lock of `stop`.
            threading.Thread(target=self.stop.ask, args=("SIGINT",), daemon=True).start()

        before = signal.getsignal(signal.SIGINT)
        signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def leave(self, result: Result) -> int:
        """Write the last lines, and return the exit code."""
        from plait.views.format import one_line

        self._view.end_line()
        if result.failure is not None and not self._view.has_shown(result.failure):
            self._view.failure(result.failure)
        if self.is_there:
            self._view.usage(f"   plait show {one_line(result.run)}")
        return result.exit_code
