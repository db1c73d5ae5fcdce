"""Random flows with names in every possible position, known there or not.

Each name is drawn at random, without regard to what is known at its position.  The first words of a
command define what it prints: see `worlds`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

from plait.lang.analysis.names import HANDLER_NAMES, LOOP_NAMES, NAMES

Map = dict[str, Any]

BUILT_IN = sorted({
    name.name for name in (*NAMES, *HANDLER_NAMES.values(), *LOOP_NAMES)
    if not name.phases or {"flow", "map", "reduce", "merge"} & {*name.phases}
} - {"env", "uuid"})  # fmt: skip
FIELDS = {
    name.name: name.fields
    for name in (*NAMES, *HANDLER_NAMES.values())
    if name.name in BUILT_IN and name.fields
}
ANY_FIELD = sorted({field for fields in FIELDS.values() for field in fields} | {"nope"})
OF_AN_END = ("stderr", "exit_code", "success", "duration")
CAPTURED = ("c0", "c1", "c2")
OTHERS = ("v0", "p0", "e0", "s0", "m0", "w0", "nobody")
LIKE_BUILT_IN = (
    "last",
    "shell",
    "item",
    "map",
    "error",
    "validation",
    "step",
    "workflow",
    "index",
    "git",
    "merge",
)
FORMATS = ("string", "json", "lines", "number", "boolean")
MOST_DEEP = 2


class Writer:
    """Writes one flow; `own` are the names that its author gives to something."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.own = {"m0"}
        self.blocks: Map = {}
        self.count = 0
        self.failed = 0
        """The number of failures on the way here: hardly any world reaches a capture behind two of them."""
        self.clashes = chance.random() < 0.3
        """Some names of the author equal built-in ones."""

    # ── a flow ───────────────────────────────────────────────────────────

    def flow(self) -> str:
        flow: Map = {}
        if self.often(0.5):
            flow["vars"] = {self.own_name("v0"): "V"}
        if self.often(0.5):
            flow["parameters"] = {self.own_name("p0"): {"default": "P"}}
        if self.often(0.5):
            flow["env"] = {self.own_name("e0"): "E"}
        if self.often(0.3):
            flow["steps"] = self.steps(0, most=2)
        else:
            self.phases(flow)
        if self.blocks:
            flow["blocks"] = self.blocks
        return json.dumps(flow, indent=1)

    def phases(self, flow: Map) -> None:
        if self.often(0.7):
            flow["setup"] = setup = self.phase()
            if isinstance(setup, dict) and "shell" in setup["steps"][0] and self.often(0.5):
                setup["capture_outputs"] = {self.own_name(self.pick(CAPTURED)): 0}
        flow["map"] = self.map()
        if self.often(0.7):
            flow["reduce"] = self.phase()
        if self.often(0.5):
            flow["merge"] = self.phase()

    def phase(self) -> Any:
        steps = self.steps(0, most=2)
        if self.often(0.6):
            return steps
        return self.shuffled({"env": {"m0": self.text()}, "steps": steps})

    def map(self) -> Map:
        fields: Map = {"input": self.items()}
        if self.often(0.3):
            fields["env"] = {"m0": self.text()}  # a step with the same variable would hide it
        if self.often(0.3):
            fields["id"] = "${item.k} " + self.text()
        if self.often(0.2):
            fields["max_items"] = 2
        if self.often(0.2):
            fields["sort_by"] = "k"
        steps = self.steps(0, most=2)
        fields[self.pick(("steps", "agent_template"))] = steps
        if self.often(0.2):
            fields["retry"] = {"attempts": 2, "initial_delay": 0}
        return self.shuffled(fields)

    def items(self) -> Any:
        rows = [{"k": 1, "d": {"e": 2}}, {"k": 2, "d": {"e": 3}, "f": self.text()}]
        return self.pick(
            (lambda: rows, lambda: {"items": rows}, lambda: {"command": self.shell("items")})
        )()

    # ── steps ────────────────────────────────────────────────────────────

    def steps(self, depth: int, *, most: int = 2) -> list[Any]:
        return [self.step(depth) for _ in range(self.chance.randint(1, most))]

    def step(self, depth: int) -> Any:
        kinds: list[tuple[int, Callable[[int], Map]]] = [
            (8, self.shell_step),
            (1, lambda _: {"write_file": {"path": self.text(), "content": self.content()}}),
            (1, lambda _: {"claude": "/do " + self.text()}),
            (1, lambda _: {"agent": {"prompt": self.text(), "options": {"o": self.text()}}}),
            (1, lambda _: {"tool": "t", "params": {"a": [self.text()], "b": self.text()}}),
            (
                1,
                lambda _: {
                    "prompt": self.pick(
                        (self.text(), {"prompt": self.text(), "system": self.text()})
                    )
                },
            ),
            (
                1,
                lambda _: {
                    "http": {
                        "url": "https://example.org/x" + self.text(),
                        "body": {"a": self.text()},
                    }
                },
            ),
            (2, self.tested_step),
            (1, lambda depth: {"validate": self.validate(depth)}),
        ]
        if depth < MOST_DEEP:
            kinds += [(3, self.foreach), (2, self.use)]
        [make] = self.chance.choices([make for _, make in kinds], [weight for weight, _ in kinds])
        step = make(depth)
        if list(step) == ["claude"] and self.often(0.3):
            return step["claude"]  # a slash command may be given alone
        return self.around(step, depth)

    def shell_step(self, _: int) -> Map:
        return {"shell": self.shell()}

    def tested_step(self, depth: int) -> Map:
        if self.often(0.4):
            return {"test": self.shell()}
        test: Map = {"command": self.shell()}
        if self.often(0.7):
            test["on_failure"] = self.handler(depth)
        return {"test": test}

    def foreach(self, depth: int) -> Map:
        items: tuple[Callable[[], Any], ...] = (
            lambda: ["a", self.text()],
            lambda: "${" + self.name() + "}",
            lambda: self.shell("lines"),
            lambda: {"items": [self.text(), {"k": self.text()}]},
            lambda: {"command": self.shell("lines")},
        )
        if self.failed:  # a name there may be a number, and then no world would finish a handler
            items = (items[0], *items[2:])
        step: Map = {"foreach": self.pick(items)(), "do": self.steps(depth + 1)}
        if self.often(0.2):
            step["continue_on_error"] = True
        return step

    def use(self, depth: int) -> Map:
        self.count += 1
        block, steps = f"b{self.count}", self.steps(depth + 1)
        step: Map = {"use": block}
        if self.often(0.5):
            step["with"] = {self.own_name("w0"): self.text()}
        self.blocks[block] = steps
        return step

    def around(self, step: Map, depth: int) -> Map:
        """A step with some fields around its action; their order has no meaning."""
        chance = (0.22, 0.08, 0.03)[min(depth, 2)]
        more: Map = {}
        if self.often(chance):
            more["when"] = f"${{{self.name()}}} != 'x'"
        if self.often(chance):
            more["env"] = {self.own_name("s0"): self.text()}
        elif self.often(0.05):
            more["metadata"] = {"env": {self.own_name("s0"): self.text()}}
        if self.often(0.1):
            more["working_dir"] = "d" + self.text()
        if self.often(0.1):
            more["output_file"] = "f" + self.text()
        if "validate" not in step and self.failed < 2 and self.often(0.5):
            self.capture(more, step)
        handled = isinstance(step.get("test"), dict) and "on_failure" in step["test"]
        if not handled and not {"validate", "foreach"} & step.keys() and self.often(chance):
            more["on_failure"] = self.handler(depth)
        if self.often(chance):
            more["on_success"] = self.following(depth)
        if self.often(chance):
            codes = ("0", "1", "3") if {"shell", "test"} & step.keys() else ("0",)
            more["on_exit_code"] = {
                code: self.for_code(code, depth) for code in codes if self.often(0.6)
            }
        if "validate" not in step and self.often(chance):
            more["validate"] = self.validate(depth)
        if self.often(0.1):
            more["continue_on_error"] = True
        if self.often(0.1):
            more["name"] = "a step"
        return self.shuffled({**step, **more})

    def capture(self, more: Map, step: Map) -> None:
        more[self.pick(("capture_output", "capture"))] = self.own_name(self.pick(CAPTURED))
        if isinstance(step.get("shell"), str) and self.often(0.5):
            more["capture_format"] = step["shell"].split()[1]

    def for_code(self, code: str, depth: int) -> Any:
        self.failed += code != "0"
        try:
            return self.following(depth)
        finally:
            self.failed -= code != "0"

    def handler(self, depth: int) -> Any:
        """A random `on_failure`."""
        self.failed += 1
        try:
            return self.handler_of(depth)
        finally:
            self.failed -= 1

    def handler_of(self, depth: int) -> Any:
        if self.often(0.4):
            return self.following(depth, lists_only=True)
        fields: Map = (
            {"steps": self.handled(depth)} if self.often(0.5) else {"shell": self.shell("string")}
        )
        if "shell" in fields and self.failed < 2 and self.often(0.5):
            fields["capture_output"] = self.own_name(self.pick(CAPTURED))
        if "shell" in fields and self.often(0.2):
            fields["claude"] = "/also " + self.text()
        if self.often(0.3):
            fields["max_attempts"] = 1
        if self.often(0.2):
            fields["fail_workflow"] = False
        return self.shuffled(fields)

    def following(self, depth: int, *, lists_only: bool = False) -> Any:
        made: list[Callable[[], Any]] = [
            lambda: self.handled(depth),
            lambda: self.shell(),
            lambda: "/fix " + self.text(),
        ]
        if not lists_only:
            made.append(lambda: self.a_map(depth + 1))
        return self.pick(made)()

    def handled(self, depth: int) -> list[Any]:
        return [
            self.shell() if self.often(0.2) else self.step(depth + 1)
            for _ in range(self.chance.randint(1, 2))
        ]

    def a_map(self, depth: int) -> Map:
        step = self.step(depth)
        return step if isinstance(step, dict) else {"claude": step}

    def validate(self, depth: int) -> Any:
        if self.often(0.2):
            return self.shell("check")
        fields: Map = {"steps": [*self.handled(depth), {"shell": self.shell("check")}]}
        if self.often(0.6):
            fields = {"shell": self.shell("check")}
        fields["max_attempts"] = 1  # names known only in a second round are not compared
        if self.often(0.2):
            fields["result_file"] = "r" + self.text()
        if self.often(0.8):
            done = self.pick((self.following, lambda depth, **_: {"steps": self.handled(depth)}))
            fields["on_incomplete"] = done(depth, lists_only=True)
        if self.often(0.3):
            fields["fail_workflow"] = False
        return fields

    # ── texts and names ──────────────────────────────────────────────────

    def shell(self, prints: str = "") -> str:
        """A command whose second word defines what it prints."""
        self.count += 1
        return f"say {prints or self.pick(FORMATS)} {self.text()}"

    def content(self) -> Any:
        return self.pick((self.text(), {"a": self.text(), "b": [self.text()]}))

    def text(self) -> str:
        self.count += 1
        asked = "".join(f" ${{{self.name()}}}" for _ in range(self.chance.choice((0, 1, 1, 2))))
        return f"t{self.count}{asked}"

    def name(self) -> str:
        kind = self.chance.random()
        if kind < 0.35:
            root = self.pick(CAPTURED)
            return root if self.often(0.7) else f"{root}.{self.pick(OF_AN_END)}"
        if kind < 0.5:
            return self.chance.choice(OTHERS)
        root = self.pick(BUILT_IN)
        if root not in FIELDS:
            return root if root != "item" or self.often(0.5) else "item.k"
        return f"{root}.{self.pick(FIELDS[root] if self.often(0.8) else ANY_FIELD)}"

    def own_name(self, usual: str) -> str:
        name = self.chance.choice(LIKE_BUILT_IN) if self.clashes and self.often(0.5) else usual
        self.own.add(name)
        return name

    def shuffled(self, fields: Map) -> Map:
        """Shuffle the fields of a map; only commands keep their order, because they run in it."""
        entries = list(fields.items())
        self.chance.shuffle(entries)
        return dict(entries)

    def often(self, share: float) -> bool:
        return self.chance.random() < share

    def pick(self, choices: Any) -> Any:
        return self.chance.choice(choices)
