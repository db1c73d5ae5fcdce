"""Tests of what a file system forbids: root may do everything, so for root they run in a child that may not."""

from __future__ import annotations

import functools
import inspect
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import pytest

POWERS = "-dac_override,-dac_read_search,-fowner"


def by_ordinary_user(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test as somebody whom permissions of files mean something to."""

    @functools.wraps(test)
    def either(request: pytest.FixtureRequest, **fixtures: Any) -> None:
        if not _is_almighty():
            test(**fixtures)
            return
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            pytest.skip("root may read everything, and there is no setpriv to give that up")
        command = [setpriv, f"--bounding-set={POWERS}", f"--inh-caps={POWERS}"]
        one = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", request.node.nodeid]
        ended = subprocess.run(
            [*command, *one], cwd=request.config.rootpath, capture_output=True, text=True, timeout=120
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr

    asked = inspect.signature(test)
    own = inspect.Parameter("request", inspect.Parameter.KEYWORD_ONLY)
    either.__signature__ = asked.replace(parameters=[*asked.parameters.values(), own])  # type: ignore[attr-defined]
    return either


def _is_almighty() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0)
        return os.access(folder, os.R_OK)
