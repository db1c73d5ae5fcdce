"""`plait schema workflow` against `plait check`: what check refuses for its form, an editor refuses, too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.core.documents import parse
from plait.lang.check import check_file
from plait.schema import WARNED, validate
from plait.schema.json_schema import json_schema
from share import examples

SCHEMA = jsonschema_rs.validator_for(json_schema())


def step(fields: str) -> str:
    return f"steps: [{{shell: ls, {fields}}}]"


def in_map(fields: str) -> str:
    return f"map: {{input: i.json, steps: [{{shell: ls}}], {fields}}}"


BAD = [
    # kinds of values
    "steps: 5",
    "steps: {shell: ls}",
    "steps: [ls]",
    "steps: [[]]",
    "steps: [{}]",
    "{name: [a], steps: []}",
    "{timeout: soon, steps: []}",
    "{timeout: -1, steps: []}",
    "{timeout: 0, steps: []}",
    "{timeout: '0s', steps: []}",
    "{timeout: 1e9, steps: []}",
    "{strict: 1, steps: []}",
    "{vars: [a], steps: []}",
    "{vars: {a-b: 1}, steps: []}",
    "{env: {A: [1]}, steps: []}",
    "{env: {A: null}, steps: []}",
    "{secrets: {A: '${env:B}'}, steps: []}",
    "{secrets: {A: {provider: vault, key: a}}, steps: []}",
    "{parameters: {a: {type: text}}, steps: []}",
    "{parameters: [{type: string}], steps: []}",
    "{blocks: {a b: []}, steps: []}",
    "{max_parallel: 0, steps: []}",
    "{max_parallel: 5000, steps: []}",
    "{max_parallel: 1.5, steps: []}",
    "{max_parallel: many, steps: []}",
    "{durability: most, steps: []}",
    "{backend: dusk, steps: []}",
    "{allow: [everything], steps: []}",
    "{mode: fast, steps: []}",
    "{error_policy: {on_item_failure: ignore}, steps: []}",
    # keys that no map of that kind has
    "{seps: [], steps: []}",
    "setup: {commnds: [{shell: ls}]}",
    in_map("inptu: a"),
    "map: {steps: [{shell: ls}]}",
    "map: {input: i.json}",
    step("tmeout: 3"),
    step("retry: {tries: 3}"),
    step("on_failure: {shel: ls}"),
    step("validate: {shell: a, treshold: 3}"),
    step("http: {}"),
    "steps: [{http: {url: 'https://h', methd: GET}}]",
    "steps: [{write_file: {path: a}}]",
    "steps: [{agent: {tool: a}}]",
    "{workflows: [], steps: []}",
    step("auto_commit: true"),
    # words and numbers of steps
    step("interpreter: zsh"),
    step("capture_format: xml"),
    step("capture_output: a b"),
    step("capture_streams: all"),
    step("id: 1"),
    step("retry: 0"),
    step("retry: 1001"),
    step("retry: {attempts: 0}"),
    step("retry: {backoff: random}"),
    step("retry: {backoff: {linear: {}}}"),
    step("retry: {base: 0.5}"),
    step("retry: {jitter: 2}"),
    step("on_exit_code: {x: ls}"),
    step("on_exit_code: {'256': ls}"),
    step("outputs: {a: {}}"),
    step("when: 3"),
    step("when: [a]"),
    "steps: [{http: {url: u, method: FETCH}}]",
    "steps: [{http: {url: u, expect: 99}}]",
    "steps: [{write_file: {path: a, content: b, mode: '9'}}]",
    "steps: [{foreach: 3, do: []}]",
    "steps: [{foreach: {items: [a], command: ls}, do: []}]",
    "steps: [{shell: ''}]",
    "steps: [{shell: ' '}]",
    "steps: [{shell: ls, validate: {shell: ''}}]",
    # what contradicts itself
    "steps: [{shell: a, tool: b}]",
    "steps: [{shell: a, command: b}]",
    "steps: [{tool: a, call: b}]",
    "{steps: [], commands: []}",
    "{steps: [{shell: ls}], map: {input: i, steps: [{shell: ls}]}}",
    "{steps: [{shell: ls}], reduce: [{shell: ls}]}",
    step("params: {a: 1}"),
    step("with: {a: 1}"),
    step("do: [{shell: ls}]"),
    step("max_items: 3"),
    "steps: [{tool: a, interpreter: sh}]",
    step("model: m"),
    "steps: [{foreach: [a]}]",
    step("outputs: {a: {file_pattern: x}}"),
    step("capture_format: json"),
    "map: {input: i, steps: []}",
    "map: {input: i, agent_template: {commands: []}}",
    in_map("on_item_failure: stop, continue_on_failure: true"),
    in_map("on_item_failure: dlq, continue_on_failure: false"),
    in_map("max_items: -1"),
    in_map("max_failures: 0"),
    in_map("failure_threshold: 2"),
    in_map("circuit_breaker: {failure_threshold: 0}"),
    in_map("backend: dusk"),
    in_map("distinct: [a]"),
    "map: {input: {}, steps: [{shell: ls}]}",
    in_map("input: {file: a, glob: b}").replace("input: i.json, ", ""),
    in_map("input: {file: a, format: xml}").replace("input: i.json, ", ""),
]

NOT_IN_A_SCHEMA = {
    # what no schema can say: the reason
    "{timeout: 99999999d, steps: []}": "a sum compared",
    in_map("max_failures: 3, error_policy: {max_failures: 5}"): "two numbers compared",
    in_map("retry: 2, error_policy: {retry_config: {attempts: 3}}"): "said twice, in two maps",
    in_map("sort_by: a SIDEWAYS"): "an order has a grammar",
    in_map("filter: 'a =='"): "a condition has a grammar",
    in_map("json_path: '$['"): "JSONPath has a grammar",
    "steps: [{shell: ls, id: a}, {shell: ls, id: a}]": "two ids compared",
    "steps: [{use: nothing}]": "blocks of other files",
    "steps: [{shell: 'echo ${nothing}'}]": "names that exist where they stand",
    "steps: [{shell: 'eval ${last.output}'}]": "shell text has a grammar",
    "{parameters: {a: {type: integer, default: x}}, steps: []}": "a default and its type compared",
    "{parameters: {a: {pattern: '('}}, steps: []}": "a pattern has a grammar",
    "setup: {steps: [{shell: ls}], capture_outputs: {a: 9}}": "a number and the length of a list",
    step("validate: {shell: a, expected_schema: {type: thing}}"): "a schema in a schema",
    step("working_dir: ../.."): "a path followed",
}


def refuses(flow: str, folder: Path) -> bool:
    (folder / "flow.yaml").write_text(flow + "\n")
    return any(finding.severity == "error" for finding in check_file(str(folder / "flow.yaml")))


@pytest.mark.parametrize("flow", BAD)
def test_what_check_refuses_the_schema_refuses(tmp_path: Path, flow: str) -> None:
    assert refuses(flow, tmp_path)
    assert not SCHEMA.is_valid(parse(flow, "f.yaml").data())


@pytest.mark.parametrize("flow", NOT_IN_A_SCHEMA)
def test_only_what_a_schema_cannot_say_is_left_to_check(tmp_path: Path, flow: str) -> None:
    assert refuses(flow, tmp_path)
    assert SCHEMA.is_valid(parse(flow, "f.yaml").data())


# ── any file at all ──────────────────────────────────────────────────────

GOOD: dict[str, Any] = json.loads("""{
  "name": "n", "timeout": "5m", "strict": true, "vars": {"a": [1]}, "env": {"A": "x"}, "max_parallel": 3,
  "parameters": {"p": {"type": "integer", "default": 3}, "q": "string"},
  "secrets": {"S": {"file": "k"}},
  "setup": {"steps": [{"shell": "ls", "capture_output": "o", "capture_format": "lines"}], "timeout": 5},
  "map": {
    "input": {"file": "i.json"}, "max_items": 5, "retry": {"attempts": 2, "backoff": "linear"},
    "error_policy": {"on_item_failure": "skip"},
    "steps": [
      {"tool": "a/b", "params": {"x": 1}, "when": "true", "on_failure": {"shell": "ls", "max_attempts": 2}},
      {"http": {"url": "https://h/", "method": "GET", "expect": [200]}, "retry": 2},
      {"foreach": ["a"], "do": [{"shell": "ls", "id": "i", "outputs": {"f": {"file_pattern": "*"}}}]},
      {"write_file": {"path": "a", "content": "b", "mode": "0644"}},
      {"shell": "ls", "validate": {"shell": "ls", "threshold": 90, "on_incomplete": {"claude": "/fix"}}}
    ]
  },
  "reduce": [{"use": "b", "with": {"x": 1}}, {"agent": {"prompt": "p"}}],
  "blocks": {"b": {"with": ["x"], "steps": ["/a"]}}
}""")


def places(value: Any, at: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [at, *(place for key, one in inner for place in places(one, (*at, key)))]


JUNK: st.SearchStrategy[Any] = st.sampled_from([
    None, True, False, 0, 1, -1, 1.5, 12345678901.5, "", "text", "a b", "/cmd", "5m", "0s", "5 m", "$x", "${x}", "$5", [], {},
    [1], ["a"], [None], {"a": 1}, {"shell": "ls"}, {"steps": []}, [{"shell": "ls"}], {"shell": "ls", "tool": "t"},
])  # fmt: skip
KEYS = st.sampled_from(
    ["shell", "tool", "id", "steps", "timeout", "params", "when", "input", "retry", "x", "commands"]
)


def changed(place: tuple[str | int, ...], value: Any, *, key: str | None) -> Any:
    """The good file with another value at a place, or with a key more in the map there."""
    flow = json.loads(json.dumps(GOOD))
    holder: Any = None
    node = flow
    for part in place:
        holder, node = node, node[part]
    if key is not None and isinstance(node, dict):
        node[key] = value
    elif holder is None:
        flow = value
    else:
        holder[place[-1]] = value
    return flow


@given(place=st.sampled_from(places(GOOD)), value=JUNK, key=st.none() | KEYS)
@settings(max_examples=examples(300), deadline=None)
def test_the_schema_and_the_reader_of_the_format_agree_on_any_file(
    place: tuple[str | int, ...], value: Any, key: str | None
) -> None:
    flow = changed(place, value, key=key)
    found = validate(parse(json.dumps(flow), "f.yaml"))
    assert SCHEMA.is_valid(flow) == (not [one for one in found if one.code not in WARNED]), [
        one.what for one in found
    ]


def test_the_good_file_is_good() -> None:
    assert SCHEMA.is_valid(GOOD)
    assert validate(parse(json.dumps(GOOD), "f.yaml")) == []
