"""Files exchanged between check and start: what was verified is what runs.

A tool, a file that it loads and a file of config/ that it asks for are signed by a
trusted key, in a project that nobody trusts.  Another process exchanges them for
other ones, by renaming and by writing in place, as fast as it can, while we call the
tool.  A call may run the signed bytes or be refused; one that runs others has lost.

    python tests/attack/swap_attack.py [--rounds 1000]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from plait.tools.trust import Trust

SOURCE: Final = Path(__file__).parents[2] / "src"

RUNTIME: Final = """\
version: 1.0.0
executor_id: core/primitives/subprocess
anchor: {mode: always}
verify_deps: {extensions: [.sh]}
config: {command: /bin/sh, args: ["{tool_path}"], input_data: "{params_json}"}
"""
TOOL: Final = """\
# executor_id: my/runtime
# config_resolve: {path: my/site.yaml}
. "${0%/*}/part.sh"
echo =good "$part" "$(cat)"
"""
PART: Final = "# executor_id: my/runtime\npart==good\n"
SITE: Final = "word: =good\n"
GOOD: Final = '=good =good {"resolved_config":{"word":"=good"}}\n'
FILES: Final = {
    "tools/my/runtime.yaml": RUNTIME,
    "tools/my/tool.sh": TOOL,
    "tools/my/part.sh": PART,
    "config/my/site.yaml": SITE,
}

SWAPPER: Final = """
import os, sys
folder = sys.argv[1]
names = ("tools/my/tool.sh", "tools/my/part.sh", "config/my/site.yaml")
good = {name: open(f"{folder}/{name}", "rb").read() for name in names}
evil = {name: data.replace(b"=good", b"=evil") for name, data in good.items()}
print("ready", flush=True)

def put(name, data):
    with open(f"{folder}/new", "wb") as file:
        file.write(data)
    os.rename(f"{folder}/new", f"{folder}/{name}")

def overwrite(name, data):
    # The same length: no size tells the two apart.
    with open(f"{folder}/{name}", "r+b") as file:
        file.write(data)

while True:
    for way in (put, overwrite):
        for name in names:
            way(name, evil[name])
            way(name, good[name])
"""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=1000)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as top:
        tally = attack(Path(top), rounds)
    print(f"{rounds:,} calls: {dict(tally)}")
    print(f"{tally['other']} calls ran something else than the signed bytes")
    return 1 if tally["other"] else 0


def attack(top: Path, rounds: int) -> Counter[str]:
    """What so many calls came to."""
    from plait.app import _perform
    from plait.errors import PlaitError
    from plait.steps.call import Toolbox, call_tool
    from plait.tools.chain import Chains
    from plait.tools.readers import ItemCache
    from plait.tools.snapshots import Snapshots
    from plait.tools.spaces import Space, Spaces
    from plait.tools.trust import Trust

    project, user = prepared(top)
    trust = Trust(str(user), str(project))
    sign_all(project, trust)
    spaces = Spaces(
        (
            Space("project", str(project / ".ai")),
            Space("user", str(user)),
            Space("system", str(SOURCE / "plait" / "system")),
        ),
        str(project),
    )
    toolbox = Toolbox(
        spaces=spaces,
        chains=Chains(spaces, ItemCache()),
        trust=trust,
        snapshots=Snapshots(str(user / "cache")),
        host={"PATH": os.defpath},
        home=str(top),
        perform=_perform,
    )
    tally: Counter[str] = Counter()
    with swapping(project / ".ai"):
        for _ in range(rounds):
            try:
                printed = call_tool(toolbox, "my/tool", {}).data
            except PlaitError as error:
                tally[f"refused: {error.code}"] += 1
                continue
            tally["good" if printed == GOOD else "other"] += 1
    return tally


def prepared(top: Path) -> tuple[Path, Path]:
    project, user = top / "project", top / "home" / ".ai"
    user.mkdir(parents=True)
    for place, contents in FILES.items():
        path = project / ".ai" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(contents)
    return project, user


def sign_all(project: Path, trust: Trust) -> None:
    from plait.tools.signing import PrivateKey, sign_bytes

    key = PrivateKey(bytes(range(32)))
    trust.store.add(key.public, owner="me", origin="attack")
    for place in FILES:
        path = project / ".ai" / place
        is_tool = place.startswith("tools/")
        data = sign_bytes(
            path.read_bytes(),
            kind="tool" if is_tool else "config",
            item_id=f"my/{path.stem}" if is_tool else f"config/my/{path.stem}",
            extension=path.suffix,
            key=key,
            now=1_774_842_431,
        )
        path.write_bytes(data)


@contextmanager
def swapping(folder: Path) -> Iterator[None]:
    swapper = subprocess.Popen([sys.executable, "-c", SWAPPER, str(folder)], stdout=subprocess.PIPE)
    try:
        assert swapper.stdout is not None
        swapper.stdout.readline()
        yield
        assert swapper.poll() is None, "the swapper has ended too early"
    finally:
        swapper.kill()
        swapper.communicate()


if __name__ == "__main__":
    sys.path.insert(0, str(SOURCE))
    sys.exit(main())
