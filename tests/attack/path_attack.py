"""Symbolic links against a space: no byte from outside is read, even while files are swapped.

Another process exchanges a folder and a file of a space for links that lead
outside, as fast as it can, while we read the same path through both ways of
opening it: the kernel's `openat2`, and the walk for kernels without it; each as a
space is read, where no link counts, and as `${file:…}` is, where links may lead
anywhere inside.  A read may find the file, find nothing, or be refused; one that
brings bytes from outside has lost.

    python tests/attack/path_attack.py [--rounds 2000]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from plait.core.safe_files import Opener

SOURCE: Final = Path(__file__).parents[2] / "src"
INSIDE: Final = b"inside"
OUTSIDE: Final = b"outside"
PLACE: Final = "tools/team/report.py"
ROUND: Final = "round/team/report.py"
"""The same file, by a link that stays in the space."""

SWAPPER: Final = """
import os, sys
place, aside, link = sys.argv[1:]
print("ready", flush=True)
while True:
    for back_and_forth in ((place, aside, link), (place, link, aside)):
        standing, away, instead = back_and_forth
        os.rename(standing, away)
        os.rename(instead, standing)
"""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=2000)
    rounds = parser.parse_args().rounds
    lost = 0
    with tempfile.TemporaryDirectory() as top:
        for what in ("folder", "file"):
            for way in READERS:
                counts = attack(Path(top) / f"{what}-{way}", what, way, rounds)
                print(f"{what} exchanged, {way}: {rounds:,} reads, {dict(counts)}")
                lost += counts["outside"]
    print(f"{lost} reads brought bytes from outside")
    return 1 if lost else 0


def attack(top: Path, what: str, way: str, rounds: int) -> Counter[str]:
    """Count the results of some reads."""
    root = prepared(top)
    counts: Counter[str] = Counter()
    with swapping(root, what):
        for _ in range(rounds):
            counts[outcome(str(root), way)] += 1
    return counts


def prepared(top: Path) -> Path:
    """A space with one tool, and the same path outside with other bytes."""
    root, outside = top / "space", top / "outside"
    for folder, contents in ((root / PLACE, INSIDE), (outside / "report.py", OUTSIDE)):
        folder.parent.mkdir(parents=True)
        folder.write_bytes(contents)
    (root / "link-to-folder").symlink_to("../../outside")
    (root / "link-to-file").symlink_to("../../../outside/report.py")
    (root / "round").symlink_to("tools/../tools")
    return root


@contextmanager
def swapping(root: Path, what: str) -> Iterator[None]:
    place = root / ("tools/team" if what == "folder" else PLACE)
    argv = [
        sys.executable,
        "-c",
        SWAPPER,
        str(place),
        str(root / "aside"),
        str(root / f"link-to-{what}"),
    ]
    swapper = subprocess.Popen(argv, stdout=subprocess.PIPE)
    try:
        assert swapper.stdout is not None
        swapper.stdout.readline()
        yield
        assert swapper.poll() is None, "the swapper has ended too early"
    finally:
        swapper.kill()
        swapper.communicate()


def outcome(root: str, way: str) -> str:
    from plait.core.errors import InputError

    try:
        found = READERS[way](root)
    except InputError:
        return "refused"
    if found is None:
        return "nothing"
    return "inside" if found == INSIDE else "outside"


def by_kernel(root: str) -> bytes | None:
    from plait.core import safe_files as beneath

    found = beneath.read_below(root, PLACE, way=beneath.open_with_openat2)
    return None if found is None else found[0]


def by_walking(root: str) -> bytes | None:
    from plait.core import safe_files as beneath

    found = beneath.read_below(root, PLACE, way=beneath.open_by_walking)
    return None if found is None else found[0]


def by_kernel_with_links(root: str) -> bytes | None:
    from plait.core import safe_files as beneath

    return following(root, beneath.open_with_openat2)


def by_walking_with_links(root: str) -> bytes | None:
    from plait.core import safe_files as beneath

    return following(root, beneath.open_by_walking)


def following(root: str, way: Opener) -> bytes | None:
    """Through a link that stays inside, and back by `..`."""
    from plait.core.errors import InputError
    from plait.core.safe_files import open_below

    try:
        handle = open_below(root, f"tools/../{ROUND}", links="inside", way=way)
    except FileNotFoundError:
        return None
    except OSError:
        raise InputError("refused") from None
    with open(handle, "rb") as file:
        return file.read()


def by_template(root: str) -> bytes | None:
    from plait.scope.computed import Sources

    found = Sources(root).file(PLACE)
    return found.encode() if isinstance(found, str) else None


READERS: Final[dict[str, Callable[[str], bytes | None]]] = {
    "openat2": by_kernel,
    "walk": by_walking,
    "openat2 with links": by_kernel_with_links,
    "walk with links": by_walking_with_links,
    "template": by_template,
}


if __name__ == "__main__":
    sys.path.insert(0, str(SOURCE))
    sys.exit(main())
