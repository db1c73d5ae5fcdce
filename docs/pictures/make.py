"""Record Plait in a terminal and draw it: `python docs/pictures/make.py`.

    check.svg   `plait check` and `plait explain` of the examples
    run.svg     `plait run` over 48 files, of which one fails; Ctrl-C; `plait resume`

The commands run behind a pseudo-terminal, so the colours in the pictures are those
that Plait prints.  Only the codes that Plait uses are understood: bold, dim, the
eight colours, reset, and to go up and begin a line anew.
"""

from __future__ import annotations

import codecs
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.sax.saxutils import escape

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parent.parent / "examples"
CHECKS = [
    ["check", "broken.yaml"],
    ["explain", "fix-worst.yaml", "map.agent_template[2].shell", "--values-file", "item.json"],
]
WIDE, NARROW = 150, 100
LIMIT = 30.0
"""Seconds after which a wait is given up."""
CHARACTER, LINE, MARGIN, TITLE = 8.4, 19, 16, 34
FONTS = "ui-monospace,SFMono-Regular,Menlo,Consolas,DejaVu Sans Mono,monospace"
INK, PAPER, FRAME = "#d7dce2", "#15191f", "#222831"
COLOURS = {31: "#ff7b72", 32: "#7ee787", 33: "#e3b341", 34: "#79c0ff", 35: "#d2a8ff", 36: "#76e3ea"}

FLOW = """\
map:
  input: src/*.py
  max_parallel: 4
  steps:
    - shell: ./lint ${item:path}
reduce:
  - shell: echo "${map.successful} of ${map.total} files are clean"
"""
NAMES = """
    api app args auth batch cache cli clock codec config core cron db diff dns env errors events
    export files flags graph hash heap hooks http index io json keys legacy lexer lines lock main maps
    mask merge model names net parse paths plan queue store views zip
"""
FILES = NAMES.split()
# Their linter does not end while there is a file `hold`: the run is stopped while they run.
HELD = ("lines", "lock", "main", "maps")
LINT = f"""\
#!/bin/sh
case $1 in
  */legacy.py) echo "$1:14: unexpected indent" >&2; exit 1 ;;
  {" | ".join(f"*/{name}.py" for name in HELD)}) while [ -e hold ]; do sleep 0.05; done ;;
esac
"""


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


Cell = tuple[str, Style]


@dataclass
class Screen:
    """What stands on a terminal, line by line."""

    lines: list[list[Cell]] = field(default_factory=lambda: [[]])
    row: int = 0
    column: int = 0
    style: Style = Style()

    def show(self, received: str) -> None:
        for piece in re.split(r"(\x1b\[[0-9;?]*[A-Za-z]|[\r\n])", received):
            if piece == "\r":
                self.column = 0
            elif piece == "\n":
                self.row += 1
                self.lines += [[]] * (self.row == len(self.lines))
            elif piece.startswith("\x1b["):
                self._obey(piece[2:-1], piece[-1])
            else:
                self._write(piece)

    def _obey(self, numbers: str, what: str) -> None:
        match what:
            case "m":
                for code in numbers.split(";"):
                    self.style = self.style.after(int(code or 0))
            case "A":
                self.row = max(0, self.row - int(numbers or 1))
            case "K":
                self.lines[self.row] = []
            case "J":
                del self.lines[self.row + 1 :]

    def _write(self, text: str) -> None:
        line = self.lines[self.row]
        line += [(" ", Style())] * (self.column - len(line))
        line[self.column : self.column + len(text)] = [(sign, self.style) for sign in text]
        self.column += len(text)

    def text(self) -> str:
        return "\n".join(map(text_of, self.lines))


def text_of(line: list[Cell]) -> str:
    return "".join(sign for sign, _ in line).rstrip()


def shown(text: str) -> list[Cell]:
    return [(sign, Style()) for sign in text]


def main() -> None:
    for name, label, lines in (
        ("check", "plait check and plait explain in a terminal", checked()),
        (
            "run",
            "plait run over 48 files in a terminal: one fails, Ctrl-C, plait resume",
            stopped_and_resumed(),
        ),
    ):
        (HERE / f"{name}.svg").write_text(drawn(lines, label), encoding="utf-8")


# ── what is recorded ─────────────────────────────────────────────────────


def checked() -> list[list[Cell]]:
    lines: list[list[Cell]] = []
    for command in CHECKS:
        lines += [*session(command, EXAMPLES, columns=WIDE), []]
    return lines[:-1]


def stopped_and_resumed() -> list[list[Cell]]:
    """The flow; its run until it is stopped while four items are running; the resumed run.

    The first run is shown as the screen was at the moment of the Ctrl-C, with the lines that were
    printed after it.
    """
    with TemporaryDirectory(prefix="plait-picture-") as folder:
        project = Path(folder, "lint")
        (project / "src").mkdir(parents=True)
        (project / "lint.yaml").write_text(FLOW)
        (project / "lint").write_text(LINT)
        (project / "lint").chmod(0o755)
        (project / "hold").touch()
        for name in FILES:
            (project / "src" / f"{name}.py").touch()
        done = FILES.index(HELD[0])

        def is_half_way(screen: str) -> bool:
            return (
                "○ reduce" in screen
                and f"{done}/{len(FILES)}" in screen
                and all(re.search(rf"{name}\.py .*[1-9]", screen) for name in HELD)
            )

        moment = Moment(is_half_way)
        after = session(["run", "lint.yaml"], project, stop_at=moment)
        said = [line for line in after if text_of(line).startswith(("stopping", "stopped"))]
        (project / "hold").unlink()
        file = [typed("cat lint.yaml"), *map(shown, FLOW.splitlines()), []]
        return [*file, *moment.lines, shown("^C"), *said, [], *session(["resume"], project)]


def typed(command: str) -> list[Cell]:
    """A line with a prompt."""
    screen = Screen()
    screen.show(f"\x1b[32m$\x1b[0m {command}")
    return screen.lines[0]


@dataclass
class Moment:
    """When a command is interrupted, and what stood on the screen then."""

    is_it: Callable[[str], bool]
    lines: list[list[Cell]] = field(default_factory=list)

    def has_come(self, screen: Screen) -> bool:
        if self.lines or not self.is_it(screen.text()):
            return False
        self.lines = [list(line) for line in screen.lines if line]
        return True


def session(
    command: list[str], directory: Path, *, columns: int = NARROW, stop_at: Moment | None = None
) -> list[list[Cell]]:
    """What a terminal shows after a command."""
    screen = Screen([typed(f"plait {' '.join(command)}"), []], row=1)
    ours, theirs = pty.openpty()
    environment = {
        **os.environ,
        "TERM": "xterm",
        "COLUMNS": str(columns),
        "LINES": "40",
        "LC_ALL": "C.UTF-8",
    }
    environment.pop("NO_COLOR", None)
    argv = [sys.executable, "-m", "plait", *command]
    child = subprocess.Popen(
        argv, cwd=directory, env=environment, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs,
        start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    deadline = time.monotonic() + LIMIT
    for received in texts(ours):
        screen.show(received)
        if stop_at is not None and stop_at.has_come(screen):
            child.send_signal(signal.SIGINT)
        if time.monotonic() > deadline:
            child.kill()
            raise SystemExit(f"plait {' '.join(command)} did not come to its end:\n{screen.text()}")
    os.close(ours)
    child.wait()
    while not screen.lines[-1]:
        screen.lines.pop()
    return screen.lines


def texts(descriptor: int) -> Iterator[str]:
    """What comes, without halves of characters and codes."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    pending = ""
    for chunk in chunks(descriptor):
        received = pending + decoder.decode(chunk)
        cut = re.search(r"\x1b(?:\[[0-9;?]*)?$", received)
        whole = received[: cut.start()] if cut else received
        pending = received[len(whole) :]
        yield whole
    yield pending


def chunks(descriptor: int) -> Iterator[bytes]:
    while True:
        try:
            chunk = os.read(descriptor, 4096)
        except OSError:  # how Linux says that the other end is closed
            return
        if not chunk:
            return
        yield chunk


# ── how it is drawn ──────────────────────────────────────────────────────


def drawn(lines: list[list[Cell]], label: str) -> str:
    columns = max(map(len, lines))
    width = round(columns * CHARACTER + 2 * MARGIN)
    height = len(lines) * LINE + 2 * MARGIN + TITLE
    dots = "".join(
        f'<circle cx="{20 + 18 * place}" cy="17" r="5.5" fill="{colour}"/>'
        for place, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    rows = "\n".join(
        row(line, TITLE + MARGIN + LINE * (number + 0.75)) for number, line in enumerate(lines)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" '
        f'role="img" aria-label="{label}">\n'
        f'<rect width="{width}" height="{height}" rx="9" fill="{PAPER}"/>\n'
        f'<path d="M0 9a9 9 0 0 1 9-9h{width - 18}a9 9 0 0 1 9 9v{TITLE - 9}H0z" fill="{FRAME}"/>{dots}\n'
        f'<g font-family="{FONTS}" font-size="14" xml:space="preserve">\n{rows}\n</g>\n</svg>\n'
    )


def row(line: list[Cell], y: float) -> str:
    """Each piece has its own place and width: carets stay under their characters in any font."""
    column, texts = 0, []
    for style, cells in groupby(line, key=lambda cell: cell[1]):
        text = "".join(sign for sign, _ in cells)
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
