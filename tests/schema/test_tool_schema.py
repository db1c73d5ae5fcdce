"""The JSON Schema and the tables of a tool's header agree with the parser of headers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from plait.core.errors import DocumentError
from plait.schema import TOOL, NoEffect, record_type
from plait.schema.json_schema import json_schema
from plait.schema.reference import render_reference
from plait.tools.headers import header_values
from plait.tools.headers.formats import NAMES
from plait.tools.tool_file import FLOWS, Entry, parse_header
from tools.test_tool_file import HERE, READ, WRONG

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "guides" / "tool-headers.md"
TOOLS = [
    path
    for folder in (ROOT / "src/plait/system/tools", ROOT / "examples")
    for path in sorted(folder.rglob("*"))
    if "tools" in path.parts and path.suffix in (".py", ".yaml", ".sh", ".mjs")
]


@pytest.fixture(scope="module")
def schema() -> Any:
    return jsonschema_rs.validator_for(json_schema("tool"))


@pytest.mark.parametrize(("key", "value", "_"), READ)
def test_the_schema_takes_what_the_parser_takes(schema: Any, key: str, value: Any, _: Any) -> None:
    if key == "env_config" and None in value.get("env", {}).values():
        pytest.skip("an editor may remark on an empty value")
    if key == "child_constraints" and None in value["a"].values():
        pytest.skip("an editor may remark on an empty value")
    header = {"executor_id": "a/b", key: value}
    assert [error.message for error in schema.iter_errors(header)] == []


LOOSE = ({"child_constraints": {"a": "1.0"}},)
"""Only the parser can distinguish the id of a tool from the name of a bound."""


@pytest.mark.parametrize("keys", [row[0] for row in WRONG if row[0] not in LOOSE], ids=str)
def test_the_schema_refuses_what_the_parser_refuses(schema: Any, keys: dict[str, Any]) -> None:
    header = {"executor_id": "a/b", **keys}
    with pytest.raises(DocumentError):
        parse_header({key: Entry(value, HERE) for key, value in header.items()})
    assert not schema.is_valid(header)


def test_the_schema_takes_the_tools_of_plait_and_of_the_examples(schema: Any) -> None:
    read = 0
    for path in TOOLS:
        try:
            header = header_values(str(path))
        except DocumentError:
            continue  # a file beside a tool
        if header.get("tool_type") not in FLOWS:
            read += 1
            assert [error.message for error in schema.iter_errors(header)] == [], path
    assert read > 15


def test_the_page_has_the_tables_of_the_parser() -> None:
    _, _, tables = PAGE.read_text("utf-8").partition("## All fields\n\n")
    assert tables.rstrip() == render_reference(TOOL)


def test_the_page_has_the_names_in_code() -> None:
    page = PAGE.read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \|$", page, re.MULTILINE)
    first = {key: name for name, key in reversed(list(NAMES.items()))}
    effective = {key: name for key, name in first.items() if key in effective_fields()}
    assert dict(rows) == effective


def effective_fields() -> set[str]:
    fields = record_type("tool").fields
    return {field.name for field in fields if not isinstance(field.kind, NoEffect)}
