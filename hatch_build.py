"""Compiles the two parts that are not Python, where there is a C compiler for them.

They make a map faster and change nothing else (decisions 22 and 23), so a machine without a
compiler, or with another C library, gets the package without them.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = os.path.join("src", "plait", "adapters", "process")
VERSION = 2
"""Of the guardian's protocol, as in guardian.py."""
PARTS = {
    # source: what is made of it, and how
    "guardian.c": (f"plait-guardian-{VERSION}", ("-std=c11",), ()),
    "warm.c": ("libwarm.so", ("-shared", "-fPIC", "-fvisibility=hidden"), ("-ldl",)),
}
FLAGS = ("-O2", "-Wall", "-Wextra")


class CustomBuildHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        made = [part for source in PARTS if (part := compile_part(self.root, source)) is not None]
        if not made:
            return
        build_data["artifacts"] += [f"/{part}" for part in made]
        build_data["pure_python"] = False
        # Any Python will do, but not any machine.
        build_data["tag"] = (
            f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        )


def compile_part(root: str, source: str) -> str | None:
    """Compile a part; return its path.  It takes the place of an older one at once: a run may use
    that.
    """
    if not sys.platform.startswith("linux"):
        return None
    name, flags, libraries = PARTS[source]
    part = os.path.join(FOLDER, name)
    made, new = os.path.join(root, part), os.path.join(root, f"{part}.{os.getpid()}")
    command = [
        *shlex.split(os.environ.get("CC", "cc")),
        *FLAGS,
        *flags,
        "-o",
        new,
        os.path.join(root, FOLDER, source),
        *libraries,
    ]
    try:
        subprocess.run(command, check=True, capture_output=True)
        os.replace(new, made)
    except (OSError, subprocess.CalledProcessError) as error:
        why = getattr(error, "stderr", b"") or str(error).encode()
        print(
            f"plait: without {name}: {why.decode(errors='replace').strip()[:500]}", file=sys.stderr
        )
        for left in (new, made):
            if os.path.exists(left):
                os.remove(left)
        return None
    return part
