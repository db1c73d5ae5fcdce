"""`plait init`: make a project with a tool and a flow that run at once."""

from __future__ import annotations

import os
import shlex

from plait.cli.arguments import require_choice
from plait.cli.scaffold import FLOWS, STATE, ignore_state, project_files, write_new
from plait.cli.trust_prompt import trust_new_files
from plait.core.errors import InputError
from plait.core.hints import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import argparse

    from plait.cli.arguments import Parser

EXAMPLES: Final = (
    "plait init my-project",
    "plait init --kind graph .",
)
KINDS: Final = tuple(FLOWS)


def configure(parser: Parser) -> None:
    parser.add_argument(
        "folder",
        metavar="DIR",
        nargs="?",
        default=".",
        help="where; the current folder if left out",
    )
    parser.add_argument(
        "--kind", metavar="K", default="workflow", help=f"what its flow is: {', '.join(KINDS)}"
    )


def run(options: argparse.Namespace) -> int:
    from plait.app.toolbox import toolbox
    from plait.tools.trust.decisions import project_files as files_to_trust

    files = project_files(require_choice("kind", options.kind, KINDS))
    root = os.path.realpath(options.folder)
    try:
        os.makedirs(root, exist_ok=True)
    except OSError as error:
        what = f"this folder cannot be made: {error.strerror}"
        raise InputError(what, root, "name another folder", code="no-directory") from None
    tools = toolbox(root)
    # The `.ai` of the user space cannot be a project: it would decide about its own trust.
    user = os.path.dirname(tools.trust.store.root)
    if os.path.commonpath([os.path.realpath(user), root]) == root:
        raise InputError(
            "your user space lies in this folder, which cannot be a project as well",
            root,
            f"choose a folder that does not hold {user}, for example plait init my-project",
            code="foreign-store",
        )
    alone = not files_to_trust(root)
    write_new(root, files)
    made = [*files, *([f".gitignore ({STATE})"] if ignore_state(root) else [])]
    first = trust_new_files(tools.trust, alone=alone, origin="plait init")
    print(f"made in {root}:")
    for path in made:
        print(f"  {path}")
    if first is None:
        print("you made it, so it is trusted here")
    else:
        print(f"this folder had other files; look at them, then trust it:  {first}")
    print("next:")
    for command in _next(options.folder, flow=list(files)[-1], trust=first):
        print(f"  {command}")
    return 0


def _next(folder: str, flow: str, *, trust: str | None) -> tuple[str, ...]:
    here = os.path.realpath(folder) == os.path.realpath(os.curdir)
    return (
        *(() if here else (f"cd {shlex.quote(folder)}",)),
        *(() if trust is None else (trust,)),
        f"plait run {flow}",
        f"plait check {flow}",
        "plait call hello -i name=Ada",
        "plait tools show hello",
    )
