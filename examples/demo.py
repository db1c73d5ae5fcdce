"""What Plait does today, on real files, in a real shell, in a few seconds: `make demo`.

Nothing here is staged: the commands come from fix-worst.yaml, the names from
items.json, and every name is checked after it has been through the shell.  The
steps are filled and run one by one, because that is the part of Plait that is
here; it works in a temporary folder and leaves nothing behind.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import plait
from plait import documents
from plait.values import Json

EXAMPLES = Path(__file__).resolve().parent
COLOUR = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
WIDTH = 110


def main() -> int:
    with TemporaryDirectory(prefix="plait-demo-") as folder:
        project = Path(folder)
        arrived = show_that_values_arrive(project)
        finished = show_a_workflow(project)
        show_commands()
        injected = len(list(project.rglob("owned")))
    heading("What happened")
    say(f"values that arrived unchanged, in 4 places each   {arrived} of {len(items()) - 1}")
    say(f"items that went through every step                {finished} of {len(items())}")
    say(f"commands that ran because a value contained them  {injected}")
    say("\nNext: docs/tutorial.md")
    return 0 if arrived == len(items()) - 1 and finished == len(items()) and not injected else 1


# ── 1 ────────────────────────────────────────────────────────────────────


def show_that_values_arrive(project: Path) -> int:
    """How many values came out of the shell as they went in."""
    heading("1. A value is data, in whatever quotes it stands")
    template = """printf '%s\\0' ${v} "${v}" 'in ${v}' --name=${v}"""
    say(f"template  {template}")
    right = 0
    for value in [path for path in paths() if not path.startswith("-")]:
        done = plait.sh(template, {"v": value}, cwd=project)
        whole = done.stdout.split("\0")[:-1] == [value, value, f"in {value}", f"--name={value}"]
        right += whole
        say(f"  {mark(whole)} {shown(value)}")
    say("A name that starts with '-' could be an option of the command: refused until the author decides.")
    try:
        plait.sh("rm ${v}", {"v": "-rf"}, cwd=project)
    except plait.PlaitError as error:
        say(indented(str(error)))
    return right


# ── 2 ────────────────────────────────────────────────────────────────────


def show_a_workflow(project: Path) -> int:
    """How many items went through every step."""
    heading("2. The steps of fix-worst.yaml, over the files of items.json")
    flow: Json = documents.load(EXAMPLES / "fix-worst.yaml").data()
    make_repository(project)
    scope = plait.Scope().frame("flow", env=flow["env"], workflow={"workflow": {"name": flow["name"]}})
    scope = after_steps(flow["setup"], scope, project)[0]
    successful = 0
    for index, item in enumerate(items()):
        say(f"{shown(item['path'])}")
        inner = scope.frame("item", phase={"item": item, "item_index": index, "item_total": len(items())})
        successful += after_steps(flow["map"]["agent_template"], inner, project)[1]
    say("reduce")
    results = {"map": {"successful": successful, "total": len(items())}}
    after_steps(flow["reduce"][:1], scope.frame("reduce", phase=results), project)
    say(f"git log  {len(git(project, 'log', '--format=%s').splitlines()) - 1} commits, the last one:")
    say(indented(git(project, "log", "-1", "--format=%s")))
    return successful


def after_steps(
    steps: list[Mapping[str, Json]], scope: plait.Scope, project: Path
) -> tuple[plait.Scope, bool]:
    """Run shell steps in order; what they capture is known to those after them."""
    for step in steps:
        done = plait.sh(step["shell"], scope, cwd=project, env=environment(), timeout=20)
        say(f"  {mark(done.success)} {dim(shown(done.shown))}")
        if done.stdout.strip():
            say(f"      {shown(done.stdout.strip())}")
        if not done.success:
            say(indented(done.stderr))
            return scope, False
        if name := step.get("capture_output"):
            scope = scope.child(**{name: done.stdout.strip()})
    return scope, True


def make_repository(project: Path) -> None:
    line = "word " * 40 + "\n"
    for path in paths():
        (project / path).write_text("short\n" + line, encoding="utf-8")
    git(project, "init", "--quiet")
    git(project, "add", "--all")
    git(project, "commit", "--quiet", "--message", "begin")


def git(project: Path, *arguments: str) -> str:
    command = ["git", "-C", str(project), *arguments]
    return subprocess.run(command, env=environment(), check=True, capture_output=True, text=True).stdout


def environment() -> dict[str, str]:
    who = {"NAME": "Ada", "EMAIL": "ada@example.org"}
    identity = {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in who.items()}
    return {**os.environ, **identity, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}


# ── 3 ────────────────────────────────────────────────────────────────────


def show_commands() -> None:
    heading("3. What is wrong in a file, before anything runs")
    run_plait("check", "broken.yaml")
    heading("4. Where a command comes from")
    run_plait("explain", "fix-worst.yaml", "map.agent_template[2].shell", "--values-file", "item.json")


def run_plait(*arguments: str) -> None:
    say(f"$ plait {' '.join(arguments)}")
    sys.stdout.flush()
    # The same standard output, so that Plait sees whether it is a terminal.
    command = [sys.executable, "-m", "plait", *arguments]
    subprocess.run(command, cwd=EXAMPLES, stderr=subprocess.STDOUT, check=False)


# ── small things ─────────────────────────────────────────────────────────


def items() -> list[dict[str, str]]:
    document: Json = documents.load(EXAMPLES / "items.json").data()
    found: list[dict[str, str]] = document["items"]
    return found


def paths() -> list[str]:
    return [item["path"] for item in items()]


def say(text: str) -> None:
    print(text)


def heading(text: str) -> None:
    say(f"\n\x1b[1m{text}\x1b[0m" if COLOUR else f"\n{text}")


def mark(right: bool) -> str:
    sign = "✓" if right else "✗"
    return f"\x1b[{32 if right else 31}m{sign}\x1b[0m" if COLOUR else sign


def dim(text: str) -> str:
    return f"\x1b[2m{text}\x1b[0m" if COLOUR else text


def shown(text: str) -> str:
    line = text.strip("\n").replace("\n", "⏎")
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"


def indented(text: str) -> str:
    return "\n".join(f"      {line}" for line in text.rstrip("\n").splitlines())


if __name__ == "__main__":
    sys.exit(main())
