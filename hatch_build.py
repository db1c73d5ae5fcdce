"""What a build adds to the sources: two compiled parts, and the commit of a development build.

The parts are compiled where there is a C compiler for them.  They make a map faster and change
nothing else (decisions 22 and 23).  So a machine without a compiler, or with one that fails, gets the
package without them: a wheel for any machine.  `PLAIT_PURE=1` asks for that wheel.

A wheel is built beside the checkout, so it takes nothing away from an editable installation.  The
latter has its parts in the checkout itself.  A wheel also has the examples, for `plait new --from`.

`plait --version` shows what is in commit.txt.  A release has none: its version says all.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import platform_tags

PURE = "PLAIT_PURE"
"""If this variable is set, nothing is compiled."""
FOLDER = Path("plait", "adapters", "process")
FLAGS = ("-O2", "-Wall", "-Wextra", "-s")
LIBRARY = "libwarm.so"
COMMIT = Path("plait", "commit.txt")
USAGE_ERROR = 64
"""Exit code of a guardian without arguments."""
LONGEST = 300
"""Seconds that a compiler may take."""


class CustomBuildHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        sources = Path(self.root, "src") / FOLDER
        if version == "editable":
            make_parts(sources, sources)
            return
        self.made = tempfile.TemporaryDirectory(prefix="plait-build-")
        commit = find_commit(Path(self.root), self.metadata.version)
        if commit:
            file = Path(self.made.name, COMMIT.name)
            file.write_text(f"{commit}\n", "utf-8")
            inside = "src" / COMMIT if self.target_name == "sdist" else COMMIT
            build_data["force_include"][str(file)] = str(inside)
        if self.target_name == "sdist":
            return
        for example in example_files(Path(self.root, "examples")):
            packed = "plait" / example.relative_to(self.root)
            build_data["force_include"][str(example)] = str(packed)
        parts = make_parts(sources, Path(self.made.name))
        if parts:
            for part in parts:
                build_data["force_include"][str(part)] = str(FOLDER / part.name)
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform_tag(parts)}"

    def finalize(self, version: str, *_: object) -> None:
        if version != "editable":
            self.made.cleanup()


def find_commit(root: Path, version: str) -> str:
    """The commit that is built; nothing if it has the tag of this version, or if it is not known."""
    packed = root / "src" / COMMIT
    if packed.exists():  # a released source, which is no checkout
        return packed.read_text("utf-8").strip()
    if not (root / ".git").exists():
        return ""
    try:
        tags = ask_git(root, "tag", "--points-at", "HEAD").split()
        commit = ask_git(root, "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty")
    except (OSError, subprocess.SubprocessError) as error:
        print(f"plait: the commit is not known: {error}", file=sys.stderr)
        return ""
    is_changed = commit.endswith("-dirty")
    if f"v{version}" in tags and not is_changed:
        return ""
    return commit.replace("-dirty", ", changed")


def ask_git(root: Path, *arguments: str) -> str:
    # A hook of git names its own repository in variables.
    environment = {name: text for name, text in os.environ.items() if not name.startswith("GIT_")}
    asked = subprocess.run(
        ["git", *arguments],
        cwd=root,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        timeout=LONGEST,
    )
    return asked.stdout.strip()


def example_files(folder: Path) -> Iterator[Path]:
    """The files of the examples and their list, without what runs and tests left among them."""
    yield folder / "README.md"
    for file in sorted(folder.glob("*/**/*")):
        if file.is_file() and not {"state", "__pycache__"} & set(file.relative_to(folder).parts):
            yield file


def make_parts(sources: Path, folder: Path) -> list[Path]:
    """Compile the parts into the folder; returns their paths.  A part that fails leaves none there."""
    guardian, library = folder / guardian_name(sources), folder / LIBRARY
    parts: list[Path] = []
    if os.environ.get(PURE):
        print(f"plait: {PURE} is set, so the guardian is not compiled", file=sys.stderr)
    elif not sys.platform.startswith("linux"):
        print("plait: the guardian is compiled on Linux only", file=sys.stderr)
    elif compile_part(sources / "guardian.c", guardian, "-std=c11"):
        parts.append(guardian)
        # Only the compiled guardian uses it.
        if compile_part(
            sources / "warm.c", library, "-shared", "-fPIC", "-fvisibility=hidden", "-ldl"
        ):
            parts.append(library)
    for part in (guardian, library):
        if part not in parts:
            part.unlink(missing_ok=True)
    if guardian not in parts:
        print("plait: without it the guardian in Python serves: maps are slower", file=sys.stderr)
    return parts


def guardian_name(sources: Path) -> str:
    """It ends with the version of the protocol, which guardian_protocol.py has."""
    found = re.search(
        r"^VERSION: Final = (\d+)$", (sources / "guardian_protocol.py").read_text("utf-8"), re.M
    )
    assert found is not None
    return f"plait-guardian-{found[1]}"


def compile_part(source: Path, part: Path, *flags: str) -> bool:
    """Compile a part.  It takes the place of an older one at once: a run may use that."""
    new = part.with_name(f"{part.name}.{os.getpid()}")
    try:
        compiler = shlex.split(os.environ.get("CC") or "cc")
        # Libraries stand after the source that needs them.
        command = [*compiler, *FLAGS, "-o", str(new), str(source), *flags]
        subprocess.run(
            command, check=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=LONGEST
        )
        require_program(new)
        os.replace(new, part)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        printed = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip()
        why = printed or (
            f"'{shlex.join(compiler)}' ended with {error.returncode}"
            if isinstance(error, subprocess.CalledProcessError)
            else str(error)
        )
        print(f"plait: {source.name} was not compiled: {why[:500]}", file=sys.stderr)
        return False
    finally:
        new.unlink(missing_ok=True)
    return True


def require_program(part: Path) -> None:
    """Not every compiler that reports success has made a program that starts on this machine."""
    if not part.exists() or part.read_bytes()[:4] != b"\x7fELF":
        raise ValueError("the compiler made no program")
    if not part.name.startswith(LIBRARY):
        code = subprocess.run(
            [part], capture_output=True, stdin=subprocess.DEVNULL, timeout=LONGEST, check=False
        ).returncode
        if code != USAGE_ERROR:
            raise ValueError(f"the compiled program ended with {code} instead of {USAGE_ERROR}")


def platform_tag(parts: list[Path]) -> str:
    """The machine, and the oldest GNU C library with which the parts start.

    With another C library, or an older one, an installer then takes the wheel for any machine.
    """
    plain = re.sub(r"[-.]", "_", sysconfig.get_platform())
    found = {
        (int(major), int(minor))
        for part in parts
        for major, minor in re.findall(rb"GLIBC_(\d+)\.(\d+)", part.read_bytes())
    }
    if not found:
        return plain
    major, minor = max(found)
    tag = plain.replace("linux", f"manylinux_{major}_{minor}", 1)
    # This Python may itself use another C library: it has to install what is built for it.
    return tag if tag in set(platform_tags()) else plain
