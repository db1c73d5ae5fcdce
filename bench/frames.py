"""The frames from `run_flow` to the order of an item's shell, taken from stacks of a real run.

python bench/frames.py      prints each frame; `make figures` prints their number
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from pathlib import Path
from unittest.mock import patch

from plait.adapters import local
from plait.adapters.process import process
from plait.app import services
from plait.app.runs import run_flow

FLOW = """\
name: frames
map:
  input: [a, b]
  max_parallel: 2
  agent_template:
    - shell: "echo ${item}"
"""
HANDLER = """\
      on_failure:
        - shell: "true"
"""
Frame = tuple[str, str]


def main() -> int:
    for title, flow in (("a step", FLOW), ("a step with a handler", FLOW + HANDLER)):
        caller, item = take_stacks(flow)
        where = "in its thread" if caller else "in the one thread of all items"
        print(f"{title}: {len(caller) + len(item)} frames, {len(item)} of them {where}")
        for file, name in (*caller, ("", ""), *item):
            print(f"  {name:<28} {file}")
    return 0


def take_stacks(flow: str = FLOW) -> tuple[list[Frame], list[Frame]]:
    """Return our frames from `run_flow` to the start of threads, and to the order of a process.

    Items that share one thread start no others: then all frames are in the second list.
    """
    caller: list[Frame] = []
    item: list[Frame] = []
    start_threads, order_shell = local._start, services.order_shell

    def note_caller(*given: object) -> object:
        caller[:] = our_frames()
        return start_threads(*given)  # type: ignore[arg-type]

    def note_item(*given: object, **options: object) -> object:
        item[:] = our_frames()
        return order_shell(*given, **options)  # type: ignore[arg-type]

    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, HOME=folder):
        path = Path(folder, "flow.yaml")
        path.write_text(flow)
        threads = patch.object(local, "_start", note_caller)
        with threads, patch.object(services, "order_shell", note_item):
            result = run_flow(str(path))
        process.end_all()
    assert result.status == "done", result
    return caller, item


def our_frames() -> list[Frame]:
    frames = [
        (file.rpartition("/plait/")[2], frame.f_code.co_name)
        for frame, _ in traceback.walk_stack(sys._getframe(2))
        if "/plait/" in (file := frame.f_code.co_filename)
    ][::-1]
    names = [name for _, name in frames]
    return frames[names.index("run_flow") if "run_flow" in names else 0 :]


if __name__ == "__main__":
    sys.exit(main())
