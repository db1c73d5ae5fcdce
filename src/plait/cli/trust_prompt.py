"""The toolbox of a command, and the one question it may put to a person.

A question is asked on a terminal only: both what we write (standard error) and
what we read (standard input) must be one.  Anywhere else nobody is asked, and the
refusal names the command to type.  No option of the environment answers it.
"""

from __future__ import annotations

import os
import sys

from plait.core.errors import InputError
from plait.core.hints import TYPE_CHECKING, Final
from plait.views.terminal import paint_for, printable

if TYPE_CHECKING:
    import argparse

    from plait.cli.arguments import Parser
    from plait.tools.call import Toolbox
    from plait.tools.trust.decisions import Trust, TrustQuestion

_MOST_LISTED: Final = 200


def add_project(parser: Parser, *, lockable: bool = True) -> None:
    """Whose tools they are; and, for commands that run or judge them, whether a lock binds them."""
    parser.add_argument(
        "--project",
        metavar="DIR",
        help="the project's folder; otherwise the nearest one above whose .ai holds more than state",
    )
    if lockable:
        parser.add_argument(
            "--locked",
            action="store_true",
            help="refuse what is not in plait.lock, or differs from it",
        )


def load_toolbox(options: argparse.Namespace, *, asking: bool = False) -> Toolbox:
    """The tools of the project that was named; `asking`: a person may be asked to trust it."""
    tools = _toolbox(options, asking=asking)
    return _with_lockfile(tools) if getattr(options, "locked", False) else tools


def _toolbox(options: argparse.Namespace, *, asking: bool) -> Toolbox:
    from plait.app.toolbox import toolbox

    if options.project is not None and not os.path.isdir(options.project):
        raise InputError(
            "there is no such folder", options.project[:200], "check --project", code="no-directory"
        )
    return toolbox(options.project, ask=ask_for_trust if asking and is_interactive() else None)


def _with_lockfile(tools: Toolbox) -> Toolbox:
    from plait.core.records import replace
    from plait.tools.trust.decisions import Lockfile

    return replace(
        tools, trust=tools.trust.with_lockfile(Lockfile.read(tools.trust.project or os.getcwd()))
    )


def is_interactive() -> bool:
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def ask_for_trust(question: TrustQuestion) -> bool:
    """`y`, or `show` and then `y`; anything else is no."""
    paint = paint_for(sys.stderr)
    print(printable(str(question)), file=sys.stderr)
    while True:
        answer = _answer(f"{paint('trust it?', 'bold')} y / N / show  ")
        if answer in ("s", "show"):
            print(_listing(question), file=sys.stderr)
            continue
        return answer in ("y", "yes")


def confirm(text: str) -> bool:
    """A plain yes to a plain question."""
    return _answer(f"{paint_for(sys.stderr)(text, 'bold')} y / N  ") in ("y", "yes")


def _answer(prompt: str) -> str:
    sys.stderr.write(prompt)
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower()


def _listing(question: TrustQuestion) -> str:
    wanted = {
        os.path.relpath(item.path, question.project).replace(os.sep, "/") for item in question.items
    }
    shown = question.brings[:_MOST_LISTED]
    lines = [
        f"  {printable(path)}{'   ← about to run' if path in wanted else ''}" for path in shown
    ]
    if len(question.brings) > len(shown):
        lines.append(f"  … and {len(question.brings) - len(shown)} more")
    return "\n".join(lines)


def trust_new_files(trust: Trust, *, alone: bool, origin: str) -> str | None:
    """Trust a project for what we put there; otherwise the command that a person types for it.

    `alone`: the project brought nothing else along before, so that nothing unseen comes to be
    trusted.
    """
    if trust.project is None or trust.project_trusted:
        return None
    if not alone:
        return f"plait trust {_quote_path(trust.project)}"
    trust.trust_project(origin=origin)
    return None if trust.project_trusted else "plait sign --all"


def _quote_path(path: str) -> str:
    import shlex

    return shlex.quote(path)
