"""The options `--project` and `--locked`, and the tools that they select."""

from __future__ import annotations

import os

from plait.core.errors import InputError
from plait.core.hints import TYPE_CHECKING
from plait.views.terminal import is_interactive

if TYPE_CHECKING:
    import argparse

    from plait.cli.arguments import Parser
    from plait.tools.prepare import Toolbox
    from plait.tools.trust.decisions import Trust, TrustQuestion


def add_project(parser: Parser, *, lockable: bool = True) -> None:
    """`--project`; and `--locked` for commands that run or verify tools."""
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


def require_folder(project: str | None) -> None:
    if project is not None and not os.path.isdir(project):
        raise InputError(
            "there is no such folder", project[:200], "check --project", code="no-directory"
        )


def load_toolbox(options: argparse.Namespace, *, asking: bool = False) -> Toolbox:
    """The tools of the project.  `asking`: a person at a terminal may be asked to trust it."""
    from plait.app.toolbox import toolbox

    require_folder(options.project)
    tools = toolbox(options.project, ask=_ask_for_trust if asking and is_interactive() else None)
    return _with_lockfile(tools) if getattr(options, "locked", False) else tools


def _ask_for_trust(question: TrustQuestion) -> bool:
    from plait.cli.trust_prompt import ask_for_trust

    return ask_for_trust(question)


def trust_project(trust: Trust) -> None:
    """`--trust`: trust the project of a command.

    A folder without files that need trust is not recorded: it could get some later.
    """
    from plait.tools.trust.decisions import project_files

    if trust.project is not None and not trust.project_trusted and project_files(trust.project):
        trust.trust_project(origin="--trust")


def _with_lockfile(tools: Toolbox) -> Toolbox:
    from plait.core.records import replace
    from plait.tools.trust.decisions import Lockfile

    lockfile = Lockfile.read(tools.trust.project or os.getcwd())
    return replace(tools, trust=tools.trust.with_lockfile(lockfile))
