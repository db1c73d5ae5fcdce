"""Plait's main job, on real files, in a few seconds: `make demo`.

It copies examples/fix-worst into a temporary folder and runs it: measure a small
code base, mend its worst files in parallel, measure again, write a report.  Then
it kills a run with SIGKILL in the middle and resumes it.  Nothing is staged, and
nothing is left behind.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

EXAMPLE = Path(__file__).resolve().parent / "fix-worst"
PLAIT = [sys.executable, "-m", "plait"]
COLOUR = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
SLOW = """\
name: count-to-forty
map:
  input: {command: seq 40}
  max_parallel: 2
  steps:
    - shell: sleep 0.05; echo ${item} >> done.txt
reduce:
  - shell: echo ${map.successful} of ${map.total} items done, $(sort done.txt | uniq -d | wc -l) of them twice
"""


def main() -> int:
    with TemporaryDirectory(prefix="plait-demo-") as folder:
        project = Path(folder, "fix-worst")
        shutil.copytree(EXAMPLE, project)
        heading("1. Measure, mend the worst files in parallel, measure again, report")
        say("plait run flow.yaml")
        ran = subprocess.run([*PLAIT, "run", "flow.yaml"], cwd=project).returncode
        injected = list(project.rglob("owned"))
        repeated = kill_and_resume(Path(folder, "killed"))
    heading("What happened")
    say(f"values that became commands, with file names like '$(touch owned).txt'   {len(injected)}")
    say(f"items that ran again after they were recorded, with a kill -9            {repeated}")
    say("\nNext: docs/tutorial.md")
    return ran or bool(injected) or repeated


def kill_and_resume(project: Path) -> int:
    """How many items ran a second time although their end was recorded."""
    heading("2. Kill a run with SIGKILL, and resume it")
    project.mkdir()
    Path(project, "flow.yaml").write_text(SLOW)
    say("plait run flow.yaml &   kill -9 …")
    command = [*PLAIT, "run", "flow.yaml", "--quiet"]
    running = subprocess.Popen(command, cwd=project, stdout=subprocess.DEVNULL)
    ledger = Path(project, "done.txt")
    deadline = time.monotonic() + 30
    while (
        not ledger.exists() or len(ledger.read_text().split()) < 15
    ) and time.monotonic() < deadline:
        time.sleep(0.01)
    running.send_signal(signal.SIGKILL)
    running.wait()
    recorded = recorded_items(project)
    say(f"killed after {recorded} of 40 items were recorded\n")
    say("plait resume")
    before = ledger.read_text().split()
    subprocess.run([*PLAIT, "resume"], cwd=project, check=True)
    again = ledger.read_text().split()[len(before) :]
    return max(0, len(again) - (40 - recorded))


def recorded_items(project: Path) -> int:
    import json

    done = subprocess.run(
        [*PLAIT, "runs", "--json"], cwd=project, capture_output=True, text=True, check=True
    )
    runs = json.loads(done.stdout)
    newest = runs[0] if isinstance(runs, list) else runs["runs"][0]
    return int(newest["counts"].get("done", 0))


def heading(text: str) -> None:
    say(f"\n\033[1m{text}\033[0m" if COLOUR else f"\n{text}")


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
