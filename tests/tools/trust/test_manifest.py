"""The manifest describes the system's files exactly as reading them does."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from plait.core.safe_files import stamp_below
from plait.tools.headers import header_values, read_item
from plait.tools.spaces import Space, ToolLocation
from plait.tools.trust import manifest
from plait.tools.trust.manifest_reader import SYSTEM, manifest_header

BUILT = manifest.build()
TOOLS = sorted(path for path in BUILT.contents if path.startswith("tools/"))


def found(root: str, relative: str, name: Any = "system") -> ToolLocation:
    stamp = stamp_below(root, relative)
    assert stamp is not None
    item_id = os.path.splitext(relative)[0].removeprefix("tools/")
    return ToolLocation(item_id, Space(name, root), relative, stamp)


@pytest.mark.parametrize("relative", TOOLS)
def test_a_header_from_the_manifest_is_the_header_in_the_file(relative: str) -> None:
    as_reported = read_item(found(SYSTEM, relative))
    as_read = read_item(found(SYSTEM, relative, "user"))  # where the manifest has no say
    assert as_reported.header == as_read.header
    assert manifest_header(SYSTEM, relative, as_reported.digest) == header_values(as_read.path)


def test_every_runtime_is_reported_and_nothing_that_is_no_tool() -> None:
    assert "tools/core/runtimes/python/script.yaml" in BUILT.contents
    assert not {"tools/core/file/_tree.py", "providers/openai.yaml"} & BUILT.contents.keys()


SH = "# executor_id: core/runtimes/bash/bash\n# version: '{}'\necho\n"


def test_a_header_is_reported_of_these_bytes_only(tmp_path: Path) -> None:
    tool = tmp_path / "tools" / "t.sh"
    tool.parent.mkdir()
    tool.write_text(SH.format(1))
    manifest.write(str(tmp_path))
    assert read_item(found(str(tmp_path), "tools/t.sh")).header.version == "1"
    tool.write_text(SH.format(2))
    assert read_item(found(str(tmp_path), "tools/t.sh")).header.version == "2"


def test_a_check_finds_a_header_that_is_not_in_its_file(tmp_path: Path) -> None:
    tool = tmp_path / "tools" / "t.sh"
    tool.parent.mkdir()
    tool.write_text(SH.format(1))
    manifest.write(str(tmp_path))
    page = tmp_path / "manifest.json"
    record = json.loads(page.read_text())
    record["contents"]["tools/t.sh"]["version"] = "12"
    page.write_text(json.dumps(record))
    assert manifest.check(str(tmp_path)) == ["tools/t.sh says something else"]
