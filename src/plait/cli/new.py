"""`plait new`: write one file of any kind that runs, or passes `check`, at once.

A flow goes to the given path; the other kinds have their place below `.ai` of the project. `--from`
copies a whole example. No file is overwritten.
"""

from __future__ import annotations

import os
import shlex
import sys

from plait.cli import templates
from plait.cli.arguments import require_choice
from plait.cli.project import add_project
from plait.core.errors import InputError
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.records import dataclass
from plait.core.values import json_text

if TYPE_CHECKING:
    import argparse

    from plait.cli.arguments import Parser
    from plait.tools.prepare import Toolbox

EXAMPLES: Final = (
    "plait new workflow",
    "plait new tool team/report --runtime bash",
    "plait new --from check-files",
)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of file that `plait new` writes."""

    what: str
    """The description in the list of kinds."""
    path: str
    """The path: `{name}` is the last part of the given path, or the kind."""
    text: str
    """The content; `{name}` in it is replaced by the name of the new file."""
    next: tuple[str, ...] = ()
    """Commands to type next, with `{path}` or `{name}`."""

    @property
    def is_flow(self) -> bool:
        return not self.path.startswith(".ai/")


MODEL: Final = "PLAIT_PROVIDER=anthropic plait run {path}   # or openai, local: it asks a model"
KINDS: Final = {
    "workflow": Kind("steps in order", "{name}.yaml", templates.WORKFLOW, ("plait run {path}",)),
    "map": Kind(
        "a workflow: steps for each item, in parallel",
        "{name}.yaml",
        templates.MAP,
        ("plait run {path}",),
    ),
    "graph": Kind(
        "nodes with a state, edges and loops",
        "{name}.yaml",
        templates.GRAPH,
        ("plait run {path}", "plait graph {path}"),
    ),
    "directive": Kind(
        "a prompt for an agent, with tools and limits (needs a model)",
        "{name}.md",
        templates.DIRECTIVE,
        ("plait run {path} --dry-run", MODEL),
    ),
    "ensemble": Kind(
        "tasks of several agents and tools (needs a model)",
        "{name}.yaml",
        templates.ENSEMBLE,
        ("plait run {path} --dry-run", MODEL),
    ),
    "tool": Kind("a script with a schema; --runtime says which language", "", ""),
    "hooks": Kind(
        "reactions to events of every run of the project",
        ".ai/config/hooks.yaml",
        templates.HOOKS,
        ("plait check {path}",),
    ),
    "provider": Kind(
        "a model provider of your own",
        ".ai/config/providers/{name}.yaml",
        templates.PROVIDER,
        ("plait check {path}",),
    ),
    "settings": Kind(
        "the settings of the project", ".ai/plait.yaml", templates.SETTINGS, ("plait check {path}",)
    ),
}


def configure(parser: Parser) -> None:
    parser.add_argument(
        "kind", metavar="KIND", nargs="?", help=f"{', '.join(KINDS)}; without one, list them"
    )
    parser.add_argument(
        "path",
        metavar="PATH",
        nargs="?",
        help="where a flow goes, the id of a tool, or the name of a provider",
    )
    parser.add_argument(
        "--runtime",
        metavar="R",
        help="of a tool: python, function, bash, node or http; default: by its extension, else python",
    )
    parser.add_argument(
        "--from",
        dest="example",
        metavar="EXAMPLE",
        nargs="?",
        const="",
        help="copy this example to the folder PATH, or to one of its name; without a name, list them",
    )
    add_project(parser, lockable=False)


def run(options: argparse.Namespace) -> int:
    if options.example is not None:
        _copy_example(options)
        return 0
    if options.kind is None:
        _list_kinds()
        return 0
    kind = require_choice("kind", options.kind, tuple(KINDS))
    if options.runtime is not None and kind != "tool":
        what = f"plait new {kind}: --runtime is for a tool"
        raise InputError(what, fix="plait new tool NAME --runtime R", code="arguments")
    from plait.cli.project import load_toolbox

    tools = load_toolbox(options)
    if kind == "tool":
        _write_tool(tools, options.path, options.runtime)
    else:
        _write_file(tools, kind, options.path)
    return 0


def _list_kinds() -> None:
    from plait.views.terminal import format_table, paint_for, width

    paint = paint_for(sys.stdout)
    print(paint("plait new KIND [PATH] writes one of these:", "bold"))
    rows = [(f"  {name}", kind.what) for name, kind in KINDS.items()]
    for line in format_table(rows, width(sys.stdout)):
        print(line)
    print("a whole project:  plait init DIR; an example:  plait new --from EXAMPLE")


# ── an example ───────────────────────────────────────────────────────────


def _copy_example(options: argparse.Namespace) -> None:
    from plait.app.examples import all_examples, copy_example, find_example
    from plait.app.toolbox import toolbox
    from plait.cli.trust_prompt import trust_new_files
    from plait.views.terminal import format_table, paint_for, width

    if not options.example:
        print(paint_for(sys.stdout)("plait new --from EXAMPLE [PATH] copies one of these:", "bold"))
        rows = [(f"  {example.name}", example.what) for example in all_examples()]
        for line in format_table(rows, width(sys.stdout)):
            print(line)
        return
    if options.path is not None or options.runtime is not None:
        what = "plait new --from takes one example and one folder"
        raise InputError(what, fix="plait new --from EXAMPLE [PATH]", code="arguments")
    example = find_example(options.example)
    folder = options.kind or example.name
    files = copy_example(example, folder)
    print(f"copied to {os.path.realpath(folder)}:")
    for path in files:
        print(f"  {path}")
    trust = toolbox(folder).trust
    # The folder was empty, and every file in it comes from Plait.
    trust_new_files(trust, alone=True, origin="plait new --from")
    print("you copied it, so it is trusted here")
    print("next:")
    for command in (f"cd {shlex.quote(folder)}", "cat README.md", f"plait check {example.flow}"):
        print(f"  {command}")


# ── a tool ───────────────────────────────────────────────────────────────


def _write_tool(tools: Toolbox, name: str | None, runtime: str | None) -> None:
    from plait.cli.scaffold import RUNTIMES, new_tool

    if name is None:
        what = "plait new tool: PATH is missing"
        raise InputError(what, fix="give its id: plait new tool team/report", code="arguments")
    stem, extension = os.path.splitext(name.removeprefix("./").removeprefix(".ai/tools/"))
    by_extension: dict[str, str] = {}
    for each, (ending, _) in RUNTIMES.items():
        by_extension.setdefault(ending, each)
    if extension not in by_extension:
        stem += extension
    new_tool(tools, stem, runtime or by_extension.get(extension, "python"))


# ── every other file ─────────────────────────────────────────────────────


def _write_file(tools: Toolbox, name: str, given: str | None) -> None:
    from plait.cli.scaffold import write_new
    from plait.cli.trust_prompt import trust_new_files
    from plait.tools.trust.decisions import project_files

    kind = KINDS[name]
    root = os.curdir if kind.is_flow else tools.spaces.project or os.getcwd()
    path, stem = _place(kind, name, given)
    alone = not project_files(tools.spaces.project or os.getcwd())
    write_new(root, {path: kind.text.replace("{name}", _plain(stem))})
    shown = os.path.relpath(os.path.join(root, path))
    print(f"wrote {shown}")
    if not kind.is_flow and (
        first := trust_new_files(tools.trust, alone=alone, origin="plait new")
    ):
        print(f"it counts after you trust it:  {first}")
    print("next:")
    for command in kind.next:
        print("  " + command.format(path=shlex.quote(shown), name=stem))


def _place(kind: Kind, name: str, given: str | None) -> tuple[str, str]:
    """Return the path of the new file, and the name that it contains."""
    folder, base = os.path.split(given or name)
    stem, extension = os.path.splitext(base)
    wanted = os.path.splitext(kind.path)[1]
    if given is not None and "{name}" not in kind.path:
        what = f"plait new {name} takes no PATH"
        raise InputError(what, fix=f"it is always {kind.path}", code="arguments")
    if not stem or stem in (".", "..") or (extension and not _fits(extension, wanted)):
        raise InputError(
            f"plait new {name}: '{(given or '')[:60]}' is not the name of such a file",
            fix=f"name it as {kind.path.format(name='my-' + name)}",
            code="arguments",
        )
    if kind.is_flow:
        return os.path.join(folder, stem + (extension or wanted)), stem
    if folder not in ("", os.path.dirname(kind.path)):
        what = f"plait new {name}: PATH is a name"
        raise InputError(what, fix=f"it goes to {os.path.dirname(kind.path)}", code="arguments")
    return kind.path.format(name=stem), stem


def _fits(extension: str, wanted: str) -> bool:
    return extension == wanted or (extension, wanted) in ((".yml", ".yaml"), (".markdown", ".md"))


def _plain(name: str) -> str:
    """Write a name for YAML: one that could mean something else is quoted."""
    words = ("true", "false", "null", "yes", "no", "on", "off")
    is_word = name.isascii() and name.replace("-", "_").isidentifier() and name.lower() not in words
    return name if is_word else json_text(name)
