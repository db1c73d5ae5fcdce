"""Files exchanged between check and start: what was verified is what runs.

Tools, the files that they load and a file of config/ that one asks for are signed by a
trusted key, in an untrusted project: a tool with an anchor, a script and a
function with files in their folders.  Another process exchanges all of them for other
ones, by renaming, by writing in place, by leaving out the signature and by taking the
file away, as fast as it can, while we call the tools.  A call may run the signed bytes,
miss a file, or be refused; one that runs or reads others has lost.

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
    from plait.tools.trust.decisions import Trust

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
SCRIPT: Final = """\
# executor_id: core/runtimes/bash/bash
. "${0%/*}/part.sh"
echo =good "$part" "$(cat "${0%/*}/data.txt")"
"""
FUNCTION: Final = """\
__executor_id__ = "core/runtimes/python/function"
import os
import part
def execute(params, project_path):
    data = open(os.path.join(os.path.dirname(__file__), "data.txt")).read()
    return f"=good {part.PART} {data}\\n"
"""
FILES: Final = {
    "tools/my/runtime.yaml": RUNTIME,
    "tools/my/tool.sh": TOOL,
    "tools/my/part.sh": PART,
    "config/my/site.yaml": SITE,
    "tools/script/tool.sh": SCRIPT,
    "tools/script/part.sh": "part==good\n",
    "tools/script/data.txt": "=good",
    "tools/function/tool.py": FUNCTION,
    "tools/function/part.py": "PART = '=good'\n",
    "tools/function/data.txt": "=good",
}
CALLS: Final = {
    "my/tool": GOOD,
    "script/tool": "=good =good =good\n",
    "function/tool": "=good =good =good\n",
}

SIGNED_AT: Final = 1_774_842_431
SWAPPED: Final = [place for place in FILES if not place.endswith("runtime.yaml")]
SWAPPER: Final = """
import os, sys
folder, *names = sys.argv[1:]
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

def strip(name, data):
    # Without its signature nobody speaks for a file, and nothing speaks against it.
    put(name, b"".join(line for line in data.splitlines(True) if b":signed:" not in line))

def take(name, data):
    os.rename(f"{folder}/{name}", f"{folder}/taken")

while True:
    for way in (put, overwrite, strip, take):
        for name in names:
            way(name, evil[name])
            (overwrite if way is overwrite else put)(name, good[name])
"""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=1000)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as top:
        counts = attack(Path(top), rounds)
    print(f"{rounds:,} calls: {dict(counts)}")
    print(f"{counts['other']} calls ran something else than the signed bytes")
    return 1 if counts["other"] else 0


def attack(top: Path, rounds: int) -> Counter[str]:
    """Count the results of some calls."""
    from plait.app.toolbox import _perform
    from plait.core.errors import PlaitError
    from plait.tools.call import call_tool
    from plait.tools.chain import Chains
    from plait.tools.headers import ItemCache
    from plait.tools.prepare import Toolbox
    from plait.tools.snapshots import Snapshots
    from plait.tools.spaces import Space, Spaces
    from plait.tools.trust.decisions import Trust

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
    counts: Counter[str] = Counter()
    with swapping(project / ".ai"):
        for number in range(rounds):
            tool, good = list(CALLS.items())[number % len(CALLS)]
            try:
                result = call_tool(toolbox, tool, {})
            except PlaitError as error:
                counts[f"{tool} refused: {error.code}"] += 1
                continue
            if "=evil" in f"{result.data} {result.error}":
                counts["other"] += 1
            else:
                counts[f"{tool} {'good' if result.data == good else 'missed a file'}"] += 1
    return counts


def prepared(top: Path) -> tuple[Path, Path]:
    project, user = top / "project", top / "home" / ".ai"
    user.mkdir(parents=True)
    for place, contents in FILES.items():
        path = project / ".ai" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(contents)
    return project, user


def sign_all(project: Path, trust: Trust) -> None:
    from plait.tools.trust.signatures import PrivateKey, sign_bytes, sign_detached

    key = PrivateKey(bytes(range(32)))
    trust.store.add(key.public, owner="me", origin="attack")
    for place in FILES:
        path = project / ".ai" / place
        fields = {
            "kind": "tool" if place.startswith("tools/") else "config",
            "item_id": place.removeprefix("tools/").removesuffix(path.suffix),
            "extension": path.suffix,
        }
        if path.suffix == ".txt":
            signature = sign_detached(path.read_bytes(), key=key, now=SIGNED_AT, **fields)
            path.with_name(f"{path.name}.sig").write_bytes(signature)
        else:
            path.write_bytes(sign_bytes(path.read_bytes(), key=key, now=SIGNED_AT, **fields))


@contextmanager
def swapping(folder: Path) -> Iterator[None]:
    swapper = subprocess.Popen(
        [sys.executable, "-c", SWAPPER, str(folder), *SWAPPED], stdout=subprocess.PIPE
    )
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
