"""A project, a home and an environment of their own, for tests that call tools as people do."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import plait
from plait.app import toolbox as app_toolbox
from plait.tools.prepare import Toolbox
from plait.tools.spaces import EXTENSIONS
from plait.tools.trust.signatures import PrivateKey, sign_bytes

KEY = PrivateKey(bytes(range(32)))
STRANGER = PrivateKey(bytes(range(1, 33)))
SIGNED_AT = 1_774_842_431  # 2026-03-30T03:47:11Z

ECHO = "import json, sys\nprint(json.dumps(json.load(sys.stdin)))\n"
"""A script that gives its parameters back."""


@dataclass(frozen=True)
class Project:
    """`call` and `dry` go through the public functions; `trust` is what `plait trust .` does."""

    top: Path

    @property
    def root(self) -> Path:
        return self.top / "project"

    @property
    def space(self) -> Path:
        return self.root / ".ai"

    @property
    def user(self) -> Path:
        return self.top / "home" / ".ai"

    @property
    def toolbox(self) -> Toolbox:
        return app_toolbox.toolbox(self.root)

    def write(self, place: str, contents: str | bytes) -> Path:
        """A file below the project."""
        return _written(self.root / place, contents)

    def write_own(self, place: str, contents: str | bytes) -> Path:
        """A file below the user's space."""
        return _written(self.user / place, contents)

    def config(self, place: str, **keys: Any) -> Path:
        """A tool of the project that ends in the process primitive; keys are those of its header."""
        header = {"version": "1.0.0", "executor_id": "core/primitives/subprocess", **keys}
        return self.write(f".ai/tools/{place}.yaml", json.dumps(header))

    def script(
        self, place: str, body: str = ECHO, *, header: str = "", runtime: str = "python/script"
    ) -> Path:
        """A Python tool of the project."""
        return self.write(
            f".ai/tools/{place}.py", python_tool(body, header=header, runtime=runtime)
        )

    def trust(self) -> Project:
        self.toolbox.trust.trust_project(origin="test")
        return self

    def trust_key(self, key: PrivateKey = KEY) -> None:
        self.toolbox.trust.store.add(key.public, owner="me", origin="test")

    def sign(self, path: Path, key: PrivateKey = KEY, *, item_id: str | None = None) -> Path:
        """Sign a tool for the id that its place gives it."""
        inside = path.relative_to(self.space / "tools")
        name = item_id or str(inside.with_suffix("") if inside.suffix in EXTENSIONS else inside)
        data = sign_bytes(
            path.read_bytes(),
            kind="tool",
            item_id=name,
            extension=path.suffix,
            key=key,
            now=SIGNED_AT,
        )
        path.write_bytes(data)
        return path

    def call(self, tool_id: str, /, **params: Any) -> dict[str, Any]:
        return plait.call(tool_id, params, project=self.root)

    def data(self, tool_id: str, /, **params: Any) -> Any:
        """What a tool that succeeds gives."""
        result = self.call(tool_id, **params)
        assert result["status"] == "success", result
        return result["data"]

    def dry(self, tool_id: str, /, **params: Any) -> dict[str, Any]:
        return plait.call(tool_id, params, project=self.root, dry_run=True)

    def refusal(
        self, tool_id: str, params: Mapping[str, Any] | None = None, *, dry: bool = False
    ) -> plait.PlaitError:
        with pytest.raises(plait.PlaitError) as caught:
            plait.call(tool_id, params or {}, project=self.root, dry_run=dry)
        return caught.value


def python_tool(body: str = ECHO, *, header: str = "", runtime: str = "python/script") -> str:
    return (
        f'__executor_id__ = "rye/core/runtimes/{runtime}"\n__version__ = "1.0.0"\n{header}\n{body}'
    )


def new_project(top: Path, monkeypatch: pytest.MonkeyPatch, **env: str) -> Project:
    """An untrusted project, with a small and known environment."""
    made = Project(top)
    for folder in (made.space / "tools", made.user):
        folder.mkdir(parents=True, mode=0o755)
    for name in set(os.environ) - {"PATH", "LANG", "TMPDIR", "PYTEST_CURRENT_TEST"}:
        monkeypatch.delenv(name)
    host = {
        "USER_SPACE": str(top / "home"),
        "HOME": str(top / "home"),
        "RYE_PYTHON": sys.executable,
        **env,
    }
    for name, value in host.items():
        monkeypatch.setenv(name, value)
    return made


def _written(path: Path, contents: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(contents if isinstance(contents, bytes) else contents.encode())
    return path
