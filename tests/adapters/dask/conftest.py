"""One small cluster of real processes for all tests of this folder."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from crash.cluster import Cluster, is_installed
from crash.scene import SOURCE


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its address."""
    if not is_installed():
        pytest.skip("distributed is not installed")
    folder = tmp_path_factory.mktemp("cluster")
    home = str(folder / "home")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {**os.environ, "PYTHONPATH": str(SOURCE), "HOME": home, "USER_SPACE": home}
    made = Cluster(folder, {**env, "UNNAMED": "worker-only"}, port)
    try:
        made.start()
        yield f"dask://{made.address}"
    finally:
        made.stop()
