"""Draw the picture of every example: `python examples/pictures.py`.

A flow is drawn by `plait graph`.  A directive is one text, so its picture is a terminal that shows
the prompt.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from plait.views.diagram.files import file_diagram
from plait.views.diagram.svg import render_svg

HERE = Path(__file__).resolve().parent
DIRECTIVES = {"review-directive": ["run", "review.md", "-i", "file=prices.py", "--prompt-only"]}


def main() -> None:
    for folder in sorted(path.parent for path in HERE.glob("*/README.md")):
        (folder / "picture.svg").write_text(picture(folder), encoding="utf-8")


def picture(folder: Path) -> str:
    if folder.name in DIRECTIVES:
        terminal = terminal_recorder()
        return str(
            terminal.drawn(
                terminal.session(DIRECTIVES[folder.name], folder), "the prompt of a directive"
            )
        )
    return render_svg(file_diagram(str(folder / "flow.yaml")))


def terminal_recorder() -> ModuleType:
    path = HERE.parent / "docs/pictures/make.py"
    spec = importlib.util.spec_from_file_location("pictures", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["pictures"] = module  # its dataclasses look for their module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
