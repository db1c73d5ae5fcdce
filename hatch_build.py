"""Compiles the one part that is not Python, where there is a C compiler for it.

It makes shells of a map begin faster and changes nothing else (decision 23), so a
machine without a compiler, or with another C library, gets the package without it.
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
SOURCE, LIBRARY = os.path.join(FOLDER, "warm.c"), os.path.join(FOLDER, "libwarm.so")
FLAGS = ("-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-fvisibility=hidden")


class CustomBuildHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        if not compiled(self.root):
            return
        build_data["artifacts"].append(f"/{LIBRARY}")
        build_data["pure_python"] = False
        # Any Python will do, but not any machine.
        build_data["tag"] = (
            f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        )


def compiled(root: str) -> bool:
    """Is there a library now?  It takes the place of an older one at once: a run may use that."""
    library = os.path.join(root, LIBRARY)
    if not sys.platform.startswith("linux"):
        return False
    new = f"{library}.{os.getpid()}"
    command = [
        *shlex.split(os.environ.get("CC", "cc")),
        *FLAGS,
        "-o",
        new,
        os.path.join(root, SOURCE),
        "-ldl",
    ]
    try:
        subprocess.run(command, check=True, capture_output=True)
        os.replace(new, library)
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", b"") or str(error).encode()
        print(
            f"plait: without warm shells: {said.decode(errors='replace').strip()[:500]}",
            file=sys.stderr,
        )
        for left in (new, library):
            if os.path.exists(left):
                os.remove(left)
        return False
    return True
