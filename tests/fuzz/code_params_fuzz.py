"""Hostile values in every parameter that is code, in every kind of file: does any of them reach an interpreter?

A case is a host (a step, a handler, a node, a hook …), a parameter that a tool reads as code, a text with one
placeholder in it, and a value that would make a canary file if it were read as code.  A flow is run for real,
with a real dash.  It may be refused, it may fail, and its text may be wrong; a canary may never be there.

    python tests/fuzz/code_params_fuzz.py --runs 1500

Exit code 1 on any failure, and if nothing was ever bound and run.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from plait.core.errors import PlaitError

CANARY = "CANARY"
PLACEHOLDER = "@@"
"""Stands for the placeholder, as each host writes it."""

PYTHON_TOOL = """
__executor_id__ = "core/runtimes/python/function"
__version__ = "1.0.0"
CONFIG_SCHEMA = {
    "type": "object",
    "properties": {
        "code": {"type": "string", "x-code": "python"},
        "jobs": {"type": "array", "items": {"$ref": "#/$defs/job"}},
        "more": {"type": "object", "additionalProperties": {"x-code": "shell"}},
        "data": {"type": "string"},
        "prompt": {}, "directory": {},
    },
    "$defs": {"job": {"anyOf": [{"type": "null"}, {"type": "object", "properties": {"run": {"x-code": "shell"}}}]}},
}

def execute(params, project_path):
    import os
    os.chdir(project_path)
    texts = [job.get("run", "") for job in params.get("jobs", []) if job]
    for text in [*texts, *params.get("more", {}).values()]:
        os.system(text if isinstance(text, str) else "; ".join(map(str, text)))
    exec(params.get("code", ""), {})
    return params.get("data", "")
"""

PAYLOADS = (
    f"; touch {CANARY}", f"$(touch {CANARY})", f"`touch {CANARY}`", f"' ; touch {CANARY} ; '",
    f'" ; touch {CANARY} ; "', f"\ntouch {CANARY}\n", f"x && touch {CANARY}", f"| touch {CANARY} #",
    f"${{x:-$(touch {CANARY})}}", f"a[$(touch {CANARY})]", f"EOF\ntouch {CANARY}\n", f"touch {CANARY}",
    f"__import__('os').system('touch {CANARY}')", f"'+__import__('os').system('touch {CANARY}')+'",
    f"${{value_1}}; touch {CANARY}", f"$${{x}} ; touch {CANARY}", f"\\$(touch {CANARY})",
)  # fmt: skip
SCRIPTS = (
    f"printf '%s' x{PLACEHOLDER}", f"printf '%s' '{PLACEHOLDER}'", f'printf "%s" "a {PLACEHOLDER}"', f"x={PLACEHOLDER}; echo \"$x\"",
    f"cat <<EOF\n{PLACEHOLDER}\nEOF", f"echo $(echo {PLACEHOLDER})", f"# {PLACEHOLDER}\necho done", f"echo a {PLACEHOLDER} {PLACEHOLDER}",
    f"eval {PLACEHOLDER}", f"{PLACEHOLDER}", f"sh -c '{PLACEHOLDER}'", f"echo $(( {PLACEHOLDER} + 1 ))", f"echo \\{PLACEHOLDER}", f"echo $${PLACEHOLDER}",
    f"for f in a {PLACEHOLDER}; do echo \"$f\"; done", f"case {PLACEHOLDER} in a) echo a;; *) echo b;; esac",
    f"echo `echo {PLACEHOLDER}`", f"x='{PLACEHOLDER}' env", f"[ -n {PLACEHOLDER} ] && echo y", f"exec {PLACEHOLDER}", f"trap '{PLACEHOLDER}' EXIT",
)  # fmt: skip
PYTHONS = (
    PLACEHOLDER,
    f"x = '{PLACEHOLDER}'",
    f"x = {PLACEHOLDER}",
    f"# {PLACEHOLDER}\nx = 1",
    f'"""{PLACEHOLDER}"""',
)
QUERIES = (
    f"$[?@.a == {PLACEHOLDER}]",
    f"$[?@.a == '{PLACEHOLDER}']",
    f"${PLACEHOLDER}",
    f"$[{PLACEHOLDER}]",
)
PATTERNS = (PLACEHOLDER, f"a{PLACEHOLDER}b", f"[{PLACEHOLDER}]", f"({PLACEHOLDER}|x)")

Params = dict[str, Any]
CODE: dict[str, Callable[[Random], tuple[str, Params]]] = {
    "core/shell": lambda r: ("core/shell", {"command": r.choice(SCRIPTS)}),
    "core/shell by bash": lambda r: ("core/shell", {"command": r.choice(SCRIPTS), "shell": "bash"}),
    "core/shell with values": lambda r: (
        "core/shell",
        {"command": r.choice(SCRIPTS) + " $${value_1}", "values": {"value_1": PLACEHOLDER}},
    ),
    "its old name": lambda r: ("rye/bash/bash", {"command": r.choice(SCRIPTS)}),
    "core/json/query": lambda r: (
        "core/json/query",
        {"query": r.choice(QUERIES), "data": [{"a": 1}]},
    ),
    "core/file/search": lambda r: ("core/file/search", {"pattern": r.choice(PATTERNS)}),
    "python": lambda r: ("team/code", {"code": r.choice(PYTHONS)}),
    "a nested list": lambda r: ("team/code", {"jobs": [{"run": r.choice(SCRIPTS)}]}),
    "a map": lambda r: ("team/code", {"more": {"any": [r.choice(SCRIPTS)]}}),
    "a whole": lambda _: ("team/code", {"jobs": PLACEHOLDER}),
}


@dataclass
class Case:
    """The files of a case, the command to run and its inputs."""

    tool: str
    params: Any
    value: str
    files: dict[str, str] = field(default_factory=dict)


def _in(params: Any, placeholder: str) -> Any:
    if isinstance(params, str):
        return params.replace(PLACEHOLDER, placeholder)
    if isinstance(params, dict):
        return {key: _in(value, placeholder) for key, value in params.items()}
    return [_in(item, placeholder) for item in params] if isinstance(params, list) else params


def _workflow(case: Case, **more: Any) -> dict[str, Any]:
    return {"parameters": {"v": {"type": "string", "default": case.value}}, **more}


def _step(case: Case, placeholder: str = "${v}") -> dict[str, Any]:
    return {"tool": case.tool, "params": _in(case.params, placeholder)}


HOSTS: dict[str, Callable[[Case], dict[str, Any]]] = {
    "step": lambda c: _workflow(c, steps=[_step(c)]),
    "step by a computed id": lambda c: _workflow(
        c, vars={"t": c.tool}, steps=[{**_step(c), "tool": "${t}"}]
    ),
    "default": lambda c: _workflow(c, steps=[_step(c, "${nothing:-${v}}")]),
    "on_failure": lambda c: _workflow(c, steps=[{"shell": "false", "on_failure": _step(c)}]),
    "validate": lambda c: _workflow(c, steps=[{"shell": "true", "validate": _step(c)}]),
    "foreach": lambda c: {"steps": [{"foreach": [c.value], "do": [_step(c, "${item}")]}]},
    "map": lambda c: {"map": {"input": [c.value], "steps": [_step(c, "${item}")]}},
    "capture": lambda c: _workflow(
        c, steps=[{"shell": "printf '%s' \"${v}\"", "capture": "got"}, _step(c, "${got}")]
    ),
    "block": lambda c: _workflow(
        c, blocks={"b": {"steps": [_step(c, "${w}")]}}, steps=[{"use": "b", "with": {"w": "${v}"}}]
    ),
    "agent": lambda c: _workflow(
        c,
        steps=[
            {"agent": {"tool": "team/code", "prompt": "x", "options": _in(_options(c), "${v}")}}
        ],
    ),
    "hook": lambda c: _workflow(
        c,
        steps=[{"shell": "true"}],
        hooks=[{"id": "h", "event": "step_finished", "action": _step(c, "${inputs.v}")}],
    ),
    "node": lambda c: _graph(c, {"a": _step(c, "${state.v}")}),
    "node by a computed id": lambda c: _graph(
        c, {"a": {**_step(c, "${state.v}"), "tool": "${state.t}"}}
    ),
    "action": lambda c: _graph(c, {"a": {"action": _step(c, "{input:v}")}}),
    "foreach node": lambda c: _graph(
        c, {"a": {**_step(c, "${item}"), "over": ["${state.v}"], "parallel": True}}
    ),
    "hook of a graph": lambda c: {
        **_graph(c, {"a": {"assign": {"b": 1}}}),
        "hooks": [{"id": "h", "event": "graph_completed", "action": _step(c, "${state.v}")}],
    },
    "shell node": lambda c: _graph(c, {"a": {"shell": _in(_script_of(c), "${state.v}")}}),
    "task": lambda c: {
        "inputs": {"v": {"type": "string", "default": c.value}},
        "tasks": [{"id": "t", "description": "d", **_step(c, "${inputs.v}")}],
    },
    "python": lambda _: {},
}


def _graph(case: Case, nodes: dict[str, Any]) -> dict[str, Any]:
    return {
        "start": "a",
        "inputs": {"v": {"type": "string", "default": case.value}},
        "state": {"v": case.value, "t": case.tool},
        "nodes": nodes,
    }


def _options(case: Case) -> Any:
    return case.params if case.tool == "team/code" else {"data": PLACEHOLDER}


def _script_of(case: Case) -> str:
    command = case.params.get("command") if isinstance(case.params, dict) else None
    return command if isinstance(command, str) else SCRIPTS[0]


@dataclass
class Results:
    tried: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)
    """The number of finished cases, by host."""
    first_failure: str = ""

    @property
    def failed(self) -> bool:
        return bool(self.first_failure) or not self.ends["done"]


class World:
    """A trusted project below a folder, without any user settings."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "project"
        (self.root / ".ai" / "tools" / "team").mkdir(parents=True)
        (self.root / ".ai" / "tools" / "team" / "code.py").write_text(PYTHON_TOOL)
        (self.root / "text").write_text("a line\n")
        os.environ["USER_SPACE"] = str(folder / "user")
        from plait.app.toolbox import toolbox

        toolbox(self.root).trust.trust_project(origin="fuzz")

    def end(self, host: str, case: Case) -> str:
        """How the case ended: done, failed or refused."""
        try:
            if host == "python":
                return self._python(case)
            from plait.app.runs import run_flow

            file = self.root / "flow.yaml"
            file.write_text(json.dumps(HOSTS[host](case)))
            return run_flow(str(file), project=str(self.root)).status
        except PlaitError as error:
            if error.exit_code == 4:
                raise
            return "refused"

    def _python(self, case: Case) -> str:
        import plait

        task = plait.Task("d", tool=case.tool, params=_in(case.params, "${inputs.v}"))
        ensemble = plait.Ensemble([task], project=str(self.root))
        return ensemble.run({"v": case.value}).status

    def canary(self) -> bool:
        found = [path for path in (self.root / CANARY, Path.cwd() / CANARY) if path.exists()]
        for path in found:
            path.unlink()
        return bool(found)


def fuzz(folder: Path, *, runs: int, seed: int, progress: bool = False) -> Results:
    """Run every host in turn, each time with another parameter, text and value."""
    results, random, world = Results(), Random(seed), World(folder)
    hosts = list(HOSTS)
    for number in range(runs):
        host = hosts[number % len(hosts)]
        name = random.choice(list(CODE))
        tool, params = CODE[name](random)
        case = Case(tool, params, random.choice(PAYLOADS))
        try_one(host, case, world, results)
        if progress and number % 100 == 99:
            print(f"  {number + 1} of {runs} cases", flush=True)
    return results


def try_one(host: str, case: Case, world: World, results: Results) -> None:
    results.tried += 1
    ended = world.end(host, case)
    results.ends[ended] += 1
    results.done[host] += ended == "done"
    if world.canary():
        results.ends["canary"] += 1
        shown = json.dumps([host, case.tool, case.params, case.value])
        results.first_failure = results.first_failure or f"a value ran: {shown}"


def main() -> int:
    parser = argparse.ArgumentParser(description="hostile values in every parameter that is code")
    parser.add_argument("--runs", type=int, default=1_500)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="plait-fuzz-") as folder:
        results = fuzz(Path(folder), runs=chosen.runs, seed=chosen.seed, progress=True)
    print(
        f"{results.tried} cases: "
        + ", ".join(f"{count} {end}" for end, count in sorted(results.ends.items()))
    )
    print(results.first_failure, end="\n" if results.first_failure else "")
    return 1 if results.failed else 0


if __name__ == "__main__":
    sys.exit(main())
