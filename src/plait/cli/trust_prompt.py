"""The question whether to trust a project.

It is asked only if standard input and standard error are a terminal.  Otherwise the command is
refused, and the message names the command to type.  No environment variable answers it.
"""

from __future__ import annotations

import os
import sys

from plait.core.hints import TYPE_CHECKING, Final
from plait.views.terminal import paint_for, printable

if TYPE_CHECKING:
    from plait.tools.trust.decisions import Trust, TrustQuestion

_MOST_LISTED: Final = 200


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
    """Trust a project after Plait wrote files to it, or return the command that trusts it.

    `alone`: the project had no other files to trust, so the user has seen all of them.
    """
    if trust.project is None or trust.project_trusted:
        return None
    if not alone:
        import shlex

        return f"plait trust {shlex.quote(trust.project)}"
    trust.trust_project(origin=origin)
    return None if trust.project_trusted else "plait sign --all"
