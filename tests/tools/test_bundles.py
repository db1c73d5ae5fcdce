"""Tools of another installed package, found by its entry point, as its author would ship them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = """__version__ = "1.0.0"
__executor_id__ = "core/runtimes/python/script"
__tool_description__ = "Says hi"
print('{"hi": 1}')
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    site = tmp_path / "site"
    tool = site / "acme_tools" / "space" / "tools" / "acme" / "hi.py"
    tool.parent.mkdir(parents=True)
    tool.write_text(TOOL)
    path = (
        "import os\n\ndef space():\n    return os.path.join(os.path.dirname(__file__), 'space')\n"
    )
    (site / "acme_tools" / "__init__.py").write_text(path)
    facts = site / "acme_tools-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-tools\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[plait.bundles]\nacme = acme_tools:space\n")
    return site


def plait(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    home = site.parent / "home"
    home.mkdir(exist_ok=True)
    env = {**os.environ, "PYTHONPATH": str(site), "HOME": str(home), "USER_SPACE": str(home)}
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=site.parent, env=env, timeout=60
    )


def test_a_bundle_runs_as_its_manifest_says_and_not_otherwise(site: Path) -> None:
    space = site / "acme_tools" / "space"
    assert plait(site, "plait", "call", "acme/hi").returncode == 3
    assert plait(site, "plait.tools.trust.manifest", str(space)).returncode == 0
    assert plait(site, "plait.tools.trust.manifest", "check", str(space)).returncode == 0
    assert plait(site, "plait", "call", "acme/hi").stdout == '{"hi":1}\n'
    assert "system:acme" in plait(site, "plait", "tools").stdout
    (space / "tools" / "acme" / "hi.py").write_text(TOOL.replace("1}", "2}"))
    assert plait(site, "plait.tools.trust.manifest", "check", str(space)).returncode == 1
    refused = plait(site, "plait", "call", "acme/hi")
    assert (refused.returncode, refused.stdout) == (3, "")
