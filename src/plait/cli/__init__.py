"""The program `plait`: find the command, run it, return an exit code.

    0  done            2  the user's file or arguments are wrong      4      our bug
    1  it failed       3  trust refused                               128+n  ended by signal n

`plait sh` returns the exit code of the command it ran; a reader that leaves early (`plait … | head`)
ends Plait silently, with the 141 that shells use for it.  Each command is a module, which is
imported only when it is called: `plait --version` loads only this file.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # type checkers read it as true; `typing` loads longer than `--version`
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, NoReturn

INTERRUPTED = 130
READER_LEFT = 141

COMMANDS = {
    # name (also that of the module): what it does
    "run": "run a flow",
    "chat": "talk with a model at a terminal, as a directive says",
    "runs": "list the runs of this project",
    "show": "show what happened in a run",
    "logs": "print what the steps of a run printed",
    "events": "print the events of a run as JSON, for programs",
    "resume": "continue a run that was stopped or has failed",
    "retry": "run failed items of a run again",
    "stop": "stop a run that another process works on",
    "web": "look at runs in a browser, and start, stop and resume them",
    "export": "send a recorded run to an OpenTelemetry collector",
    "worktrees": "list or clean the worktrees that runs left",
    "render": "fill a template, or a file of cases",
    "sh": "run shell text; values are bound, never pasted",
    "explain": "show where each value of a template comes from",
    "graph": "draw a flow, and the visits of a run",
    "check": "find problems in flows before they run",
    "init": "make a project with a tool and a flow that run at once",
    "new": "write a new flow, tool, hook or provider from a template",
    "call": "call a tool by its id",
    "tools": "list the tools, show one, make a new one",
    "sign": "sign tools with your key",
    "verify": "say of each tool whether it may run, and who signed it",
    "keys": "your signing keys, and the keys you trust",
    "trust": "decide which projects, signers and MCP tools may run",
    "mcp": "serve the tools and flows of this project to MCP clients",
    "lsp": "check, complete and explain files in an editor: a language server",
    "schema": "print the JSON Schema of a file format, for editors",
    "doctor": "say what is installed, and what works here",
    "completion": "print the completion of plait for bash, zsh or fish",
}

FAST_ARGUMENT_COMMANDS = ("run", "resume", "call", "render", "runs", "show")
"""Commands that are started often: argparse would take a large part of their start."""

RUN_COMMANDS = ("run", "resume", "retry")
"""Commands that execute a run: they load many objects, none of which is garbage, and `--json`
prints events.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code and never raises for bad input."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _ensure_streams()
    if (terminal := sys.modules.get("plait.views.terminal")) is not None:
        terminal.set_colour("auto")  # an earlier command of this process may have used --color
    if arguments[:1] in (["--version"], ["-V"]):
        return run_to_exit_code(lambda: _print_version(*arguments[1:2]))
    if arguments[:1] == ["__complete"]:
        return run_to_exit_code(lambda: _complete(arguments[1:]))
    return run_to_exit_code(lambda: _run(arguments))


def enter() -> NoReturn:
    """The program `plait`: run the command line and end with its exit code."""
    if sys.argv[1:2] and sys.argv[1] in ("call", *RUN_COMMANDS):
        import gc

        gc.disable()  # until `start_garbage_collection`
    status = main()
    sys.stderr.flush()
    # The interpreter's cleanup takes longer than its start, and the system frees everything anyway.
    if not _needs_cleanup():
        os._exit(status)
    sys.exit(status)


def start_garbage_collection() -> None:
    """Collect garbage from now on, if `enter` has stopped that, but never check loaded modules."""
    import gc

    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def _needs_cleanup() -> bool:
    """Is a function registered for the exit, or is another thread still running?"""
    atexit, threading = sys.modules.get("atexit"), sys.modules.get("threading")
    registered = atexit is not None and atexit._ncallbacks() > 0
    threads = threading is not None and (
        threading.active_count() > 1 or threading._threading_atexits
    )
    return bool(registered or threads)


def _run(arguments: list[str]) -> int:
    match arguments:
        case []:
            from plait.cli.overview import WELCOME

            return _print(WELCOME)
        case ["help" | "-h" | "--help"] | ["help", "help" | "-h" | "--help", *_]:
            from plait.cli.overview import overview

            return _print(overview(COMMANDS, (__doc__ or "").split("\n\n")[1]))
        case ["help", *rest]:
            return _run([*rest, "--help"])
        case [command, *rest]:
            return _run_command(command, rest)
    raise AssertionError("a list is empty or has a first element")


def _run_command(command: str, arguments: list[str]) -> int:
    if command not in COMMANDS:
        from plait.cli.overview import unknown_command

        raise unknown_command(command, COMMANDS)
    from importlib import import_module

    if (command == "call" or command in RUN_COMMANDS) and "--help" not in arguments:
        from plait.cli.bundle import use_bundle

        use_bundle("call" if command == "call" else "run")
    module = import_module(f"plait.cli.{command}")
    fast = command in FAST_ARGUMENT_COMMANDS and "--help" not in arguments
    options = _plain_options(module, arguments) if fast else None
    if options is None:
        from plait.cli.arguments import HelpWanted, Parser

        parser = Parser(command, COMMANDS[command], examples=module.EXAMPLES)
        module.configure(parser)
        try:
            options = parser.read(arguments)
        except HelpWanted:
            own = module.own_help(parser.read_for_help(arguments)) if command == "run" else None
            return _print(own or parser.format_help())
    if options.color is not None:
        from plait.views.terminal import set_colour

        set_colour(options.color)
    if getattr(options, "json", False):
        from plait.views.terminal import with_json_errors

        fields = {"event": "error"} if command in RUN_COMMANDS else {}
        return with_json_errors(lambda: int(module.run(options)), fields)
    return int(module.run(options))


def _plain_options(module: Any, arguments: list[str]) -> Any:
    from plait.cli.fast_arguments import FastArguments

    form = FastArguments()
    module.configure(form)
    return form.read(arguments)


def _print_version(option: str = "") -> int:
    from plait import __version__

    commit = find_commit(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    _print(f"plait {__version__} ({commit})\n" if commit else f"plait {__version__}\n")
    if option in ("--verbose", "-v"):
        from plait.app.installation import facts

        _print(facts())
    return 0


def find_commit(package: str) -> str:
    """Return the commit that `plait --version` shows; empty for a release.

    A wheel has it in commit.txt, an editable installation in its checkout. A process of git, or one
    more module, would take a large part of the start.
    """
    checkout = os.path.dirname(os.path.dirname(package))
    try:
        if os.path.exists(f"{package}/commit.txt"):
            return _read_text(f"{package}/commit.txt")
        # Another repository may contain an installed package: its commit is not ours.
        return _head_commit(checkout)[:12] if os.path.exists(f"{checkout}/hatch_build.py") else ""
    except (OSError, ValueError):
        return ""


def _head_commit(checkout: str) -> str:
    git = common = f"{checkout}/.git"
    if os.path.isfile(git):  # in a worktree: it names the folder with HEAD, which leads to the rest
        git = os.path.join(checkout, _read_text(git).removeprefix("gitdir: "))
        common = os.path.join(git, _read_text(f"{git}/commondir"))
    head = _read_text(f"{git}/HEAD")
    if not head.startswith("ref: "):
        return head
    branch = head[5:]
    if os.path.exists(f"{common}/{branch}"):
        return _read_text(f"{common}/{branch}")
    packed = (line.split(" ") for line in _read_text(f"{common}/packed-refs").splitlines())
    return next((line[0] for line in packed if line[1:] == [branch]), "")


def _read_text(path: str) -> str:
    with open(path, "rb", buffering=0) as file:
        return file.read().decode().strip()


def _complete(words: list[str]) -> int:
    from plait.cli.complete import complete

    return _print("".join(f"{line}\n" for line in complete(words, COMMANDS)))


def _print(text: str) -> int:
    sys.stdout.write(text)
    return 0


# ── how a command ends ───────────────────────────────────────────────────────


def _ensure_streams() -> None:
    """Replace a closed standard stream (`plait … >&-`), which is None, so that writing works."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - it stays open until the end
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115


def run_to_exit_code(run: Callable[[], int]) -> int:
    """Run a command, report its error, flush its output; returns the exit code."""
    try:
        try:
            status = run()
            sys.stdout.flush()
            return status
        except Exception as error:
            return _handle_error(error)
    # not during a run: there `stop_on_signal` (cli/signals.py) handles it
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        return READER_LEFT


def _handle_error(error: Exception) -> int:
    if isinstance(error, BrokenPipeError):
        raise error
    try:
        return _report_error(error)
    except (MemoryError, OSError) as worse:  # not even the module for the report could be loaded
        if isinstance(worse, BrokenPipeError):
            raise
        _discard_output()
        why = worse.strerror if isinstance(worse, OSError) else "not enough memory"
        print(
            f"plait: the operating system refused: {why}\nfix: look at its limits (ulimit -a)",
            file=sys.stderr,
        )
        return 1


def _report_error(error: Exception) -> int:
    from plait.core.errors import PlaitError

    if isinstance(error, PlaitError) and error.exit_code != 4:
        from plait.views.terminal import show_error

        sys.stdout.flush()
        show_error(error)
        return error.exit_code
    if (
        isinstance(error, OSError)
        and error.filename is None
        and _is_full(error)
        and _is_of_output(error)
    ):
        _discard_output()
        print(f"plait: the output cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    from plait.core.os_errors import machine_error

    limit = machine_error(error)
    if limit is not None:
        from plait.views.terminal import show_error

        _discard_output()
        show_error(limit)
        return limit.exit_code
    from plait.cli.crash_report import report

    return report(error)


def _is_full(error: OSError) -> bool:
    import errno

    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def _is_of_output(error: OSError) -> bool:
    """Was the error raised below a module that writes output? Other modules write files."""
    writer, trace = __name__, error.__traceback__
    while trace is not None:
        name = str(trace.tb_frame.f_globals.get("__name__", ""))
        writer = name if name.startswith("plait.") else writer
        trace = trace.tb_next
    return writer.startswith(("plait.cli", "plait.views"))


def _discard_output() -> None:
    """Prevent a second error when the interpreter flushes standard output at its exit."""
    try:
        descriptor = sys.stdout.fileno()
        devnull = os.open(os.devnull, os.O_WRONLY)
    except (OSError, ValueError):
        return  # not a real file, or no descriptor is left
    os.dup2(devnull, descriptor)
    os.close(devnull)
