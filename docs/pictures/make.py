"""Record `plait check` and `plait explain` in a terminal and draw it: `python docs/pictures/make.py`.

The commands run behind a pseudo-terminal, so the colours in the picture are those
that Plait prints.  Only the codes that Plait uses are understood: bold, dim, the
eight colours, reset.
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from xml.sax.saxutils import escape

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parent.parent / "examples"
COMMANDS = [
    ["check", "broken.yaml"],
    ["explain", "fix-worst.yaml", "map.agent_template[2].shell", "--values-file", "item.json"],
]
COLUMNS = 150
CHARACTER, LINE, MARGIN, TITLE = 8.4, 19, 16, 34
FONTS = "ui-monospace,SFMono-Regular,Menlo,Consolas,DejaVu Sans Mono,monospace"
INK, PAPER, FRAME = "#d7dce2", "#15191f", "#222831"
COLOURS = {31: "#ff7b72", 32: "#7ee787", 33: "#e3b341", 34: "#79c0ff", 35: "#d2a8ff", 36: "#76e3ea"}


@dataclass(frozen=True)
class Style:
    colour: str = INK
    bold: bool = False
    dim: bool = False

    def after(self, code: int) -> Style:
        match code:
            case 0:
                return Style()
            case 1:
                return replace(self, bold=True)
            case 2:
                return replace(self, dim=True)
            case _:
                return replace(self, colour=COLOURS.get(code, INK))


def main() -> None:
    lines: list[str] = []
    for command in COMMANDS:
        lines += [f"\x1b[32m$\x1b[0m plait {' '.join(command)}", *recorded(command).splitlines(), ""]
    (HERE / "check.svg").write_text(drawn([list(runs(line)) for line in lines[:-1]]), encoding="utf-8")


def recorded(command: list[str]) -> str:
    """What a terminal receives from a command."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": str(COLUMNS), "LC_ALL": "C.UTF-8"}
    environment.pop("NO_COLOR", None)
    argv = [sys.executable, "-m", "plait", *command]
    child = subprocess.Popen(argv, cwd=EXAMPLES, env=environment, stdout=theirs, stderr=theirs)
    os.close(theirs)
    received = b"".join(chunks(ours))
    os.close(ours)
    if child.wait() not in (0, 2):
        raise SystemExit(received.decode("utf-8", "replace"))
    return received.decode("utf-8").replace("\r\n", "\n")


def chunks(descriptor: int) -> Iterator[bytes]:
    while True:
        try:
            chunk = os.read(descriptor, 4096)
        except OSError:  # how Linux says that the other end is closed
            return
        if not chunk:
            return
        yield chunk


def runs(line: str) -> Iterator[tuple[str, Style]]:
    """Pieces of text of one style each."""
    style = Style()
    for piece in re.split(r"(\x1b\[[0-9;]*m)", line):
        if piece.startswith("\x1b["):
            for code in piece[2:-1].split(";"):
                style = style.after(int(code or 0))
        elif piece:
            yield piece, style


def drawn(lines: list[list[tuple[str, Style]]]) -> str:
    columns = max(sum(len(text) for text, _ in line) for line in lines)
    width = round(columns * CHARACTER + 2 * MARGIN)
    height = len(lines) * LINE + 2 * MARGIN + TITLE
    dots = "".join(
        f'<circle cx="{20 + 18 * place}" cy="17" r="5.5" fill="{colour}"/>'
        for place, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    rows = "\n".join(row(line, TITLE + MARGIN + LINE * (number + 0.75)) for number, line in enumerate(lines))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" '
        f'role="img" aria-label="plait check and plait explain in a terminal">\n'
        f'<rect width="{width}" height="{height}" rx="9" fill="{PAPER}"/>\n'
        f'<path d="M0 9a9 9 0 0 1 9-9h{width - 18}a9 9 0 0 1 9 9v{TITLE - 9}H0z" fill="{FRAME}"/>{dots}\n'
        f'<g font-family="{FONTS}" font-size="14" xml:space="preserve">\n{rows}\n</g>\n</svg>\n'
    )


def row(line: list[tuple[str, Style]], y: float) -> str:
    """Each piece has its own place and width: carets stay under their characters in any font."""
    column, texts = 0, []
    for text, style in line:
        bold = ' font-weight="bold"' if style.bold else ""
        dim = ' opacity="0.6"' if style.dim else ""
        x, length = MARGIN + column * CHARACTER, len(text) * CHARACTER
        texts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" textLength="{length:.1f}" fill="{style.colour}"{bold}{dim}>'
            f"{escape(text)}</text>"
        )
        column += len(text)
    return "".join(texts)


if __name__ == "__main__":
    main()
