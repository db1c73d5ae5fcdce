"""A workflow file becomes a flow that can run, or one error with everything that is wrong.

    load_workflow   file → composed document → checked → parameters, environment, secrets → steps
    Loaded          the flow, and what it was given
    _Builder        a document without problems → Work, Sequence, Fan, Workflow

Whatever `plait check` calls an error is an error here, before anything runs.  A step is
called by its id, else by its name, else by its number; its fingerprint is what its author
said, the environment and strictness that reach it included, and nothing else.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Many
from fnmatch import fnmatchcase

from plait import documents
from plait.digests import sha256_hex
from plait.documents import nodes
from plait.errors import InputError, PlaitError, Problem
from plait.flows import format
from plait.flows.check import Finding, check_workflow
from plait.flows.compose import Blocks, Composed, UseBlock, compose
from plait.flows.fields import Field, read_fields
from plait.flows.format import Said, essence, template_of
from plait.flows.inputs import (
    CommandInput,
    InputSpec,
    Selection,
    keyed,
    read_input,
    read_items,
    read_selection,
    select,
)
from plait.flows.names import profile_of
from plait.flows.parameters import Parameter, Surroundings, declared, resolve, surroundings
from plait.flows.spool import Spooled, expect_spool, read_spool, write_spool
from plait.hints import TYPE_CHECKING, Any, Final, Literal
from plait.records import dataclass, field, replace
from plait.run.backend import ItemWork
from plait.run.expressions import Expression, read_when
from plait.run.operators import OPERATORS, RefusedError
from plait.run.outcome import Failure, StepError
from plait.run.perform import PLAIN, Policy, Step, Turn
from plait.run.retry import ONCE_ONLY, Retry
from plait.scope import Scope
from plait.scope.computed import Sources
from plait.steps.capture import Capture
from plait.steps.changes import CHANGES
from plait.steps.fan import Circuit, ErrorPolicy, Fan
from plait.steps.hands import working
from plait.steps.sequence import Sequence as Steps
from plait.steps.sequence import joined, sequence
from plait.steps.shell import Shell
from plait.steps.validate import Validation
from plait.steps.work import Action, Handler, Work
from plait.steps.workflow import MAP_LISTS, Workflow
from plait.template.nodes import ContextHole, Extract, Path, holes
from plait.template.sinks import as_shell
from plait.template.template import Template, compile_template
from plait.values import UNDEFINED, Json, json_text

if TYPE_CHECKING:
    from plait.source import Span

TITLE_LENGTH: Final = 60
COMMAND_TIMEOUT: Final = 300.0
"""Seconds that a command may take to give the items of a map."""
MOST_REHEARSED: Final = 1000
"""Items that a dry run shows."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A flow that can run, and what it was given."""

    workflow: Workflow
    path: str
    project: str
    parameters: Mapping[str, Json]
    surroundings: Surroundings = field(repr=False)
    declared: Mapping[str, Parameter]
    uses: tuple[str, ...] = ()
    """The tools that its steps name."""
    warnings: tuple[Finding, ...] = ()
    strict: bool = False
    timeout: float | None = None
    durability: str = "normal"
    backend: str = "local"
    allow_outside: bool = False
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)

    def scope(self, run: str, *, sources: Sources | None = None, started: str = "") -> Scope:
        """The names with which a run of the flow begins."""
        facts: dict[str, Json] = {
            "name": self.workflow.name,
            "id": run,
            "run": run,
            "path": self.path,
            "dir": self.project,
            "iteration": 1,
            "start_time": started,
        }
        names = {**self.surroundings.names(), **self.parameters}
        outermost = Scope({}, label="run", sources=sources or self.sources())
        return outermost.frame("flow", workflow={"workflow": facts}, env=names)

    def sources(self, **more: Any) -> Sources:
        """Where computed values come from; `run`, `clock` and their like are those of `Sources`."""
        environ = {**self.environ, **self.surroundings.process_env()}
        for name in self.surroundings.secrets:
            environ.pop(name, None)  # a secret is asked for by its own name, where it is masked
        return Sources(self.project, environ=environ, allow_outside=self.allow_outside, **more)

    def process_env(self) -> dict[str, str]:
        """What its processes find in their environment, besides that of Plait."""
        return self.surroundings.process_env()

    def secret_texts(self) -> list[str]:
        """What has to be masked wherever it appears."""
        return [secret.reveal() for secret in self.surroundings.secrets.values()]


def load_workflow(
    path: str,
    *,
    given: Mapping[str, Json] | None = None,
    project: str | None = None,
    profile: str | None = None,
    strict: bool | None = None,
    max_parallel: int | None = None,
    environ: Mapping[str, str] | None = None,
) -> Loaded:
    """The flow in a file; InputError with everything that is wrong with it or with what it is given."""
    environ = environ or {}
    flow = compose(documents.load(path), path, project=project)
    findings = _expect_workflow(flow, path)
    problems = [finding.problem for finding in findings if finding.severity == "error"]
    if problems:
        raise InputError.together(problems)
    head = Said("flow", _head(flow.document), Scope())
    parameters = declared(flow.document)
    values, around = _given(head, parameters, given or {}, profile, environ)
    scope = Scope({**around.names(), **values}, sources=Sources(environ=environ))
    said = replace(head, scope=scope)
    strictly = said.flag("strict") if strict is None else strict
    builder = _Builder(flow, said, scope, strict=strictly, profile=profile, max_parallel=max_parallel)
    name = said.text("name") or os.path.splitext(os.path.basename(path))[0]
    return Loaded(
        builder.workflow(name),
        path,
        os.path.dirname(os.path.realpath(path)) if project is None else project,
        values,
        around,
        parameters,
        uses=tuple(dict.fromkeys(builder.tools)),
        warnings=(*_warnings(findings), *_refused_variables(around, said)),
        strict=strictly,
        timeout=said.seconds("timeout"),
        durability=said.text("durability") or "normal",
        backend=said.text("backend") or "local",
        allow_outside="outside_files" in said.words("allow"),
        environ=environ,
    )


def _expect_workflow(flow: Composed, path: str) -> list[Finding]:
    if profile_of(flow.document) == "workflow" or flow.problems:
        return check_workflow(flow)
    found = format.problems(flow.document)
    if found:
        raise InputError.together(found)
    fix = "write steps:, or setup:, map: and reduce:"
    raise InputError("this file has no steps", path, fix, code="no-steps")


def _head(document: nodes.Node) -> nodes.Mapping:
    """What a flow says about itself; a file that is only a list of steps says nothing."""
    return document if isinstance(document, nodes.Mapping) else nodes.Mapping((), document.span)


def _given(
    head: Said,
    parameters: Mapping[str, Parameter],
    given: Mapping[str, Json],
    profile: str | None,
    environ: Mapping[str, str],
) -> tuple[dict[str, Json], Surroundings]:
    problems: list[Problem] = []
    # What stands in for a value that is missing lets everything else be looked at as well.
    values: dict[str, Json] = dict.fromkeys(parameters)
    around = Surroundings({}, {}, {})
    try:
        values = resolve(parameters, given)
    except InputError as error:
        problems += error.problems
    try:
        around = surroundings(head, values, profile=profile, environ=environ)
    except InputError as error:
        problems += error.problems
    if problems:
        raise InputError.together(problems)
    return values, around


def _warnings(findings: Many[Finding]) -> tuple[Finding, ...]:
    return tuple(finding for finding in findings if finding.severity == "warning")


def _refused_variables(around: Surroundings, said: Said) -> Iterator[Finding]:
    for name in around.refused:
        what = f"the variable {name} of an env file is left away: it could change what programs run"
        fix = f"write {name} under env, where it is seen to be meant"
        yield Finding(Problem(what, said.span("env_files"), fix, code="refused-variable"), "warning")


# ── steps ────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Place:
    """What reaches a step from around it."""

    blocks: Blocks
    env: Mapping[str, nodes.Node] = field(default_factory=dict)
    """The env of its phase."""
    forgiving: bool = False
    """A failure does not matter: the handler of a handler."""


class _Builder:
    """Makes steps of nodes that have no problems."""

    def __init__(
        self,
        flow: Composed,
        said: Said,
        scope: Scope,
        *,
        strict: bool,
        profile: str | None,
        max_parallel: int | None,
    ) -> None:
        self.flow = flow
        self.said = said
        self.scope = scope
        self.strict = strict
        self.max_parallel = max_parallel
        self.tools: list[str] = []
        self.watches = False
        """Some step asks for the changes that it makes."""
        profiles = dict(said.entries("profiles"))
        chosen = profiles.get(profile) if profile is not None else None
        env = said.get("env")
        self.around: Json = [env.data() if env else {}, chosen.data() if chosen else {}]
        """What the whole flow says that reaches every step."""

    def workflow(self, name: str) -> Workflow:
        place = _Place(self.flow.blocks)
        document = self.flow.document
        steps = document.items if isinstance(document, nodes.Sequence) else None
        if self.said.has("steps"):
            steps = self.said.items("steps")
        fields = read_fields(document, "workflow", blocks=self.flow.blocks).fields
        flow = Workflow(
            name,
            steps=None if steps is None else self.steps("steps", steps, place),
            setup=self.setup(place),
            fan=self.fan(place),
            reduce=self.phase("reduce", place),
            merge=self.phase("merge", place),
            map_lists=frozenset(_map_lists(fields, document)),
        )
        tracks = {*_tracked(fields), *(("step",) if self.watches else ())}
        return replace(flow, tracks=frozenset(tracks))

    # ── phases ───────────────────────────────────────────────────────────

    def phase(self, key: str, place: _Place) -> Steps | None:
        node = self.said.get(key)
        if node is None:
            return None
        if isinstance(node, nodes.Sequence):
            return self.steps(key, node.items, place)
        said = self.said.inner(key)
        assert said is not None
        place = replace(place, env=dict(said.entries("env")))
        return self.steps(key, said.items("steps"), place, timeout=said.seconds("timeout"))

    def setup(self, place: _Place) -> Steps | None:
        steps = self.phase("setup", place)
        said = self.said.inner("setup")
        if steps is None or said is None or not said.has("capture_outputs"):
            return steps
        return _with_extracts(steps, said)

    def steps(
        self,
        name: str,
        items: Many[nodes.Node],
        place: _Place,
        *,
        kind: str = "phase",
        title: str = "",
        timeout: float | None = None,
    ) -> Steps:
        names = step_names(items)
        works = [
            self.work(node, called, at, place)
            for at, (node, called) in enumerate(zip(items, names, strict=True))
        ]
        policy = PLAIN if timeout is None else Policy(timeout=timeout)
        return sequence(name, works, kind=kind, title=title, policy=policy)

    # ── one step ─────────────────────────────────────────────────────────

    def work(self, node: nodes.Node, name: str, index: int, place: _Place) -> Work:
        if isinstance(node, nodes.Scalar):
            node = _spelt_out(node)
        assert isinstance(node, nodes.Mapping)
        said = Said("step", node, self.scope)
        older = said.inner("metadata")
        strict = self.strict if (own := said.maybe("strict")) is None else own
        kind, action = self.action(said, place, strict)
        env = {**place.env, **(dict(older.entries("env")) if older else {}), **dict(said.entries("env"))}
        title = said.text("name") or said.text("id") or _title(said, kind)
        return Work(
            name=name,
            kind=kind,
            title=title,
            fingerprint=self.fingerprint(node, place, strict, action),
            action=self.watched(action, said, older),
            policy=_policy(said, older),
            when=_when(said),
            env={name: template_of(value) for name, value in env.items()},
            working_dir=said.template("working_dir"),
            capture=_capture(said),
            output_file=said.template("output_file"),
            on_failure=self.handler(said, place),
            on_success=self.following(said.get("on_success"), "on_success", place),
            on_exit_code={
                int(code): steps
                for code, after in said.entries("on_exit_code")
                if (steps := self.following(after, f"on_exit_code:{code}", place)) is not None
            },
            validation=self.validation(said, place),
            continue_on_error=place.forgiving
            or said.flag("continue_on_error")
            or bool(older and older.flag("continue_on_error")),
            strict=strict,
            facts={"name": said.text("name") or title, "id": said.text("id") or "", "index": index},
        )

    def fingerprint(self, node: nodes.Node, place: _Place, strict: bool, action: Action | None) -> str:
        said = essence(node, format.STEP)
        phase = {name: value.data() for name, value in place.env.items()}
        own = sha256_hex(
            json_text([_ordered(said), self.around, phase, strict]).encode("utf-8", "surrogatepass")
        )[:16]
        block = [step.fingerprint for step in action.inner] if isinstance(action, UseBlock) else []
        return joined([own, *block]) if block else own

    # ── what it does ─────────────────────────────────────────────────────

    def action(self, said: Said, place: _Place, strict: bool) -> tuple[str, Action | None]:
        command = next((name for name in format.COMMANDS if said.has(name)), None)
        match command:
            case "shell":
                return "shell", Shell(_needed(said, "shell"), _interpreter(said), strict)
            case "test":
                inner = said.inner("test")
                script = _needed(said, "test") if inner is None else _needed(inner, "command")
                return "shell", Shell(script, "sh", strict)
            case "tool":
                return "tool", self.tool(said, strict)
            case "agent" | "claude":
                return "agent", self.agent(said, command, strict)
            case "prompt":
                return "prompt", self.prompt(said, strict)
            case "http":
                return "http", _http(said, strict)
            case "write_file":
                return "write_file", _write_file(said, strict)
            case "foreach":
                return "foreach", self.foreach(said, place, strict)
            case "use":
                return "block", self.use(said, place, strict)
        return "validate", None

    def tool(self, said: Said, strict: bool) -> Action:
        from plait.steps.tool import Tool

        template = _needed(said, "tool")
        named = said.text("tool") or ""
        if template.placeholders:
            return Tool(template, said.template("params"), strict)
        self.tools.append(named)
        return Tool(named, said.template("params"), strict)

    def agent(self, said: Said, command: str, strict: bool) -> Action:
        from plait.steps.agent import CLAUDE, Agent

        inner = said.inner(command)
        options = inner.entries("options") if inner else []
        model = (inner.get("model") if inner else None) or said.get("model")
        if model is not None:
            options = [*options, ("model", model)]
        tool = (inner.text("tool") if inner else None) or CLAUDE
        self.tools.append(tool)
        prompt = _needed(said, command) if inner is None else _needed(inner, "prompt")
        return Agent(prompt, tool, _map_template(options), strict)

    def prompt(self, said: Said, strict: bool) -> Action:
        from plait.steps.prompt import Prompt

        inner = said.inner("prompt")
        model = said.text("model")
        if inner is None:
            return Prompt(_needed(said, "prompt"), model=model, strict=strict)
        options = {name: value.data() for name, value in inner.entries("options")}
        return Prompt(
            _needed(inner, "prompt"),
            inner.template("system"),
            inner.text("provider"),
            inner.text("model") or model,
            options,
            strict,
        )

    def foreach(self, said: Said, place: _Place, strict: bool) -> Action:
        from plait.steps.foreach import Command, Source, Values, foreach

        node = said.get("foreach")
        assert node is not None
        inner = said.inner("foreach")
        source: Source
        if inner is not None:
            script = inner.template("command")
            source = (
                Values(_needed(inner, "items"), strict) if script is None else Command(script, strict=strict)
            )
        elif isinstance(format.pick(format.spelt("step")["foreach"].kind, node), format.Shell):
            source = Command(template_of(node), strict=strict)
        else:
            source = Values(template_of(node), strict)
        each = self.steps("do", said.items("do"), place, kind="rounds", title="each item")
        found = _digest(["foreach", node.data()])
        parallel = said.maybe("parallel")
        return foreach(
            source,
            each,
            fingerprint=joined([found, each.fingerprint]),
            items_fingerprint=found,
            parallel=(said.whole("parallel") or 1) if parallel is None else parallel,
            max_items=said.whole("max_items"),
            continue_on_error=said.flag("continue_on_error"),
        )

    def use(self, said: Said, place: _Place, strict: bool) -> Action:
        block = place.blocks.get(said.text("use") or "")
        assert block is not None, "what uses a block that does not exist was refused"
        steps = self.steps(
            "block", block.steps, replace(place, blocks=block.home), kind="block", title=block.name
        )
        return UseBlock(steps, said.template("with"), strict)

    def watched(self, action: Action | None, said: Said, older: Said | None) -> Action | None:
        """The action, with what is asked of the changes that it makes."""
        commits = said.flag("commit_required") or bool(older and older.flag("commit_required"))
        outputs = {name: _field(value, "file_pattern") for name, value in said.entries("outputs")}
        if action is None or not (commits or outputs):
            return action
        self.watches = True
        return Watched(action, commits, said.text("id") or "", outputs)

    # ── what follows it ──────────────────────────────────────────────────

    def following(
        self, node: nodes.Node | None, name: str, place: _Place, *, timeout: float | None = None
    ) -> Steps | None:
        """One step, or a list of steps."""
        if node is None:
            return None
        items = node.items if isinstance(node, nodes.Sequence) else (node,)
        return self.steps(name, items, place, kind="handler", timeout=timeout)

    def handler(self, said: Said, place: _Place) -> Handler | None:
        older = said.inner("test")
        if not said.has("on_failure") and older is not None:
            said = older
        node = said.get("on_failure")
        inner = said.inner("on_failure")
        if inner is not None:
            return self.handler_map(inner, place)
        if node is None or (isinstance(node, nodes.Scalar) and node.value is False):
            return None
        if isinstance(node, nodes.Scalar) and node.value is True:
            return Handler(self.steps("on_failure", (), place, kind="handler"), fails_anyway=False)
        steps = self.following(node, "on_failure", place)
        assert steps is not None
        return Handler(steps)

    def handler_map(self, said: Said, place: _Place) -> Handler:
        forgiving = said.flag("continue_on_error") or said.maybe("handler_failure_fatal") is False
        place = replace(place, forgiving=place.forgiving or forgiving)
        steps = self.steps(
            "on_failure", _commands_of(said), place, kind="handler", timeout=said.seconds("timeout")
        )
        attempts = said.whole("max_attempts")
        if attempts is None:
            attempts = 1 if said.flag("retry_original") else 0
        return Handler(steps, attempts, said.maybe("fail_workflow"))

    def validation(self, said: Said, place: _Place) -> Validation | None:
        node = said.get("validate")
        if node is None:
            return None
        inner = said.inner("validate")
        if inner is None:
            check = self.following(node, "check", place)
            assert check is not None
            return Validation(check)
        check = self.steps(
            "check", _commands_of(inner), place, kind="check", timeout=inner.seconds("timeout")
        )
        completes = inner.inner("on_incomplete")
        steps = self.completing(inner, completes, place)
        attempts = inner.whole("max_attempts")
        if attempts is None:
            attempts = completes.whole("max_attempts") if completes else 2
        fails = inner.flag("fail_workflow") and (completes is None or completes.flag("fail_workflow"))
        return Validation(
            check,
            threshold=float(inner.number("threshold") or 0),
            result_file=inner.template("result_file"),
            on_incomplete=steps,
            attempts=2 if attempts is None else attempts,
            fails=fails,
        )

    def completing(self, said: Said, completes: Said | None, place: _Place) -> Steps | None:
        if completes is None:
            return self.following(said.get("on_incomplete"), "on_incomplete", place)
        timeout = completes.seconds("timeout")
        return self.steps("on_incomplete", _commands_of(completes), place, kind="handler", timeout=timeout)

    # ── map ──────────────────────────────────────────────────────────────

    def fan(self, place: _Place) -> Fan | None:
        said = self.said.inner("map")
        if said is None:
            return None
        node = said.get("steps")
        inner = said.inner("steps")
        items = inner.items("steps") if inner is not None else said.items("steps")
        assert node is not None
        place = replace(place, env=dict(said.entries("env")))
        each = self.steps("each", items, place, kind="item", title="each item")
        found = self.map_items(said)
        limits = said.inner("timeout_config")
        timeout = said.seconds("timeout")
        return Fan(
            "map",
            found,
            each,
            joined([found.fingerprint, each.fingerprint]),
            parallel=self.parallel(said),
            item_timeout=limits.seconds("agent_timeout_secs") if timeout is None and limits else timeout,
            errors=self.errors(said),
        )

    def map_items(self, said: Said) -> MapItems:
        node = said.get("input")
        assert node is not None
        chosen = ("input", "json_path", "filter", "sort_by", "distinct", "offset", "max_items", "id")
        told = {name: value.data() for name in chosen if (value := said.get(name)) is not None}
        return MapItems(
            read_input(node),
            replace(
                read_selection(_without_holes(said.node)),
                offset=said.whole("offset") or 0,
                max_items=said.whole("max_items"),
            ),
            said.template("id"),
            _digest([told, self.around]),
            allow_outside="outside_files" in self.said.words("allow"),
            strict=self.strict,
        )

    def parallel(self, said: Said) -> int | Template:
        if self.max_parallel is not None:
            return self.max_parallel
        node = said.get("max_parallel") or self.said.get("max_parallel")
        if node is None:
            return 10
        said_number = node.data()
        return said_number if isinstance(said_number, int) else template_of(node)

    def errors(self, said: Said) -> ErrorPolicy:
        """From the map, else from the flow; written out, or in a map of their own."""
        places = [
            one
            for one in (said, said.inner("error_policy"), self.said, self.said.inner("error_policy"))
            if one
        ]
        retries = [one.inner("retry_config") for one in places if one.form == "error_policy"]
        retry = _retry(said.get("retry"), said.inner("retry")) or _retry(
            None, next((one for one in retries if one), None)
        )
        first = next((one for one in places if one.has("on_item_failure")), said)
        failing = first.text("on_item_failure") or "dlq"
        if any(one.has("continue_on_failure") and not one.flag("continue_on_failure") for one in places):
            failing = "stop"
        if said.has("retry") and not first.has("on_item_failure"):
            failing = "retry"
        circuit = next((one.inner("circuit_breaker") for one in places if one.has("circuit_breaker")), None)
        threshold = next(
            (one.number("failure_threshold") for one in places if one.has("failure_threshold")), None
        )
        most = next((one.whole("max_failures") for one in places if one.has("max_failures")), None)
        return ErrorPolicy(
            on_item_failure=failing,  # type: ignore[arg-type]  # one of the words of its table
            retry=retry or (Retry(attempts=3) if failing == "retry" else ONCE_ONLY),
            max_failures=most,
            failure_threshold=threshold,
            circuit=None
            if circuit is None
            else Circuit(
                circuit.whole("failure_threshold") or 5,
                circuit.seconds("timeout") or 30.0,
                circuit.whole("success_threshold") or 3,
            ),
        )


# ── parts of a step ──────────────────────────────────────────────────────


def step_names(steps: Many[nodes.Node]) -> list[str]:
    """What each step is called in paths: its id, else its name, else its number; no two alike."""
    ids = [_field(step, "id") for step in steps]
    taken = {name for name in ids if name}
    names: list[str] = []
    for at, (step, own) in enumerate(zip(steps, ids, strict=True)):
        wanted = own or _slug(_field(step, "name")) or str(at)
        name, number = wanted, 2
        while not own and name in taken:
            name, number = f"{wanted}-{number}", number + 1
        taken.add(name)
        names.append(name)
    return names


def _field(step: nodes.Node, name: str) -> str:
    node = step.get(name) if isinstance(step, nodes.Mapping) else None
    return str(node.value) if isinstance(node, nodes.Scalar) and node.value is not None else ""


def _slug(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name.casefold()).strip("-.")[:40].rstrip("-.")


def _spelt_out(node: nodes.Scalar) -> nodes.Mapping:
    """A step that is only text: a command of an agent, or shell text where that may stand."""
    command = "claude" if str(node.value).startswith("/") else "shell"
    return nodes.Mapping(((nodes.Scalar(command, node.span), node),), node.span)


def _commands_of(said: Said) -> Many[nodes.Node]:
    """The steps of a handler or check: a list, or one step for each command that stands in the map itself."""
    if said.has("steps"):
        return said.items("steps")
    table = format.spelt("step")
    around = [
        entry
        for entry in said.node.entries
        if str(entry[0].value) in _OF_ONE_COMMAND and str(entry[0].value) in table
    ]
    commands = [entry for entry in said.node.entries if _command(said, entry[0]) is not None]
    return [
        nodes.Mapping((_renamed(entry, _command(said, entry[0]) or ""), *around), said.node.span)
        for entry in commands
    ]


_OF_ONE_COMMAND: Final = frozenset({
    "name", "id", "params", "model", "capture_output", "capture", "capture_format", "capture_streams",
    "commit_required",
})  # fmt: skip
"""Fields of a handler or check that belong to the command beside them."""


def _command(said: Said, key: nodes.Scalar) -> str | None:
    field = format.spelt(said.form).get(str(key.value))
    return field.name if field is not None and field.name in format.COMMANDS else None


def _renamed(entry: tuple[nodes.Scalar, nodes.Node], name: str) -> tuple[nodes.Scalar, nodes.Node]:
    return nodes.Scalar(name, entry[0].span), entry[1]


def _needed(said: Said, name: str) -> Template:
    template = said.template(name)
    assert template is not None
    return template


def _map_template(entries: list[tuple[str, nodes.Node]]) -> Template | None:
    if not entries:
        return None
    keys = tuple((nodes.Scalar(name, node.span), node) for name, node in entries)
    return template_of(nodes.Mapping(keys, entries[0][1].span))


def _title(said: Said, kind: str) -> str:
    """The first line of what it does."""
    node = next((node for name in format.COMMANDS if (node := said.get(name)) is not None), None)
    written = next((leaf.source.text for leaf in template_of(node).leaves()), "") if node is not None else ""
    first = " ".join((written.strip().splitlines() or [""])[0].split())
    shown = first if len(first) <= TITLE_LENGTH else first[: TITLE_LENGTH - 1] + "…"
    return shown or kind


def _interpreter(said: Said) -> Literal["sh", "dash", "bash"]:
    match said.text("interpreter"):
        case "bash":
            return "bash"
        case "dash":
            return "dash"
    return "sh"


def _when(said: Said) -> Expression | None:
    node = said.get("when")
    if node is None:
        return None
    if isinstance(node, nodes.Mapping):
        return read_when(node.data(), locate=lambda place: _span_at(node, place))
    source = node.source() if isinstance(node, nodes.Scalar) and isinstance(node.value, str) else None
    return read_when(node.data(), source=source)


def _span_at(node: nodes.Node, place: tuple[str | int, ...]) -> Span:
    return (node.at(place) or node).span


def _policy(said: Said, older: Said | None) -> Policy:
    timeout = said.seconds("timeout")
    for other in (said.inner("test"), older):
        if timeout is None and other is not None:
            timeout = other.seconds("timeout")
    retry = _retry(said.get("retry"), said.inner("retry"))
    if retry is None and older is not None and (again := older.whole("retries")):
        retry = Retry(attempts=again + 1)
    if retry is None and timeout is None and not said.flag("once"):
        return PLAIN
    return Policy(retry=retry or ONCE_ONLY, timeout=timeout, once=said.flag("once"))


def _retry(node: nodes.Node | None, said: Said | None) -> Retry | None:
    if said is None:
        attempts = node.data() if isinstance(node, nodes.Scalar) else None
        return Retry(attempts=attempts) if isinstance(attempts, int) else None
    backoff, base, increment = (
        said.text("backoff") or "exponential",
        said.number("base"),
        said.seconds("increment"),
    )
    if (way := said.inner("backoff")) is not None:
        backoff = next(name for name in ("fixed", "linear", "exponential", "fibonacci") if way.node.get(name))
        numbers = way.inner(backoff)
        if numbers is not None and backoff == "linear":
            increment = numbers.seconds("increment")
        if numbers is not None and backoff == "exponential":
            base = numbers.number("base")
    first = said.seconds("initial_delay")
    return Retry(
        attempts=said.whole("attempts") or 1,
        backoff=backoff,  # type: ignore[arg-type]  # one of the words of its table
        initial_delay=1.0 if first is None else first,
        max_delay=said.seconds("max_delay") or 30.0,
        increment=increment,
        base=base or 2.0,
        jitter=_jitter(said),
        retry_on=said.words("retry_on"),
        budget=said.seconds("budget"),
    )


def _jitter(said: Said) -> float:
    share = said.number("jitter")
    if share is not None:
        return float(share)
    return float(said.number("jitter_factor") or 0) if said.flag("jitter") else 0.0


def _capture(said: Said) -> Capture | None:
    name = said.text("capture_output")
    if name is None:
        return None
    capture = Capture(name, format=said.text("capture_format") or "string")  # type: ignore[arg-type]
    streams = said.inner("capture_streams")
    if streams is None:
        stream: Any = said.text("capture_streams") or "stdout"  # one of the words of its table
        return replace(capture, stream=stream)
    out, err = streams.flag("stdout"), streams.flag("stderr")
    facts = {
        "output",
        "stdout",
        "stderr",
        *(one for one in ("exit_code", "success", "duration") if streams.flag(one)),
    }
    return replace(
        capture, stream="both" if out and err else "stderr" if err else "stdout", facts=frozenset(facts)
    )


def _http(said: Said, strict: bool) -> Action:
    from plait.steps.http import Http

    inner = said.inner("http")
    if inner is None:
        return Http(_needed(said, "http"), strict=strict)
    expect = inner.get("expect")
    statuses: Json = [] if expect is None else expect.data()
    return Http(
        _needed(inner, "url"),
        inner.text("method"),
        {name: template_of(value) for name, value in inner.entries("headers")},
        inner.template("body"),
        tuple(statuses if isinstance(statuses, list) else [statuses]),
        strict=strict,
    )


def _write_file(said: Said, strict: bool) -> Action:
    from plait.steps.write_file import WriteFile

    inner = said.inner("write_file")
    assert inner is not None
    mode = inner.get("mode")
    written = None if mode is None else str(mode.data())
    # `mode: 0644` without quotes is a decimal number to YAML; its digits are those that are meant.
    return WriteFile(
        _needed(inner, "path"),
        _needed(inner, "content"),
        inner.text("format") or "text",  # type: ignore[arg-type]  # one of the words of its table
        None if written is None else int(written, 8),
        inner.flag("create_dirs"),
        strict,
    )


def _ordered(data: Json) -> Json:
    match data:
        case dict():
            return {key: _ordered(data[key]) for key in sorted(data)}
        case list():
            return [_ordered(item) for item in data]
    return data


def _digest(data: Json) -> str:
    return sha256_hex(json_text(_ordered(data)).encode("utf-8", "surrogatepass"))[:16]


def _without_holes(node: nodes.Mapping) -> nodes.Mapping:
    """Without the numbers into which values are put: they are read elsewhere."""
    kept = [entry for entry in node.entries if entry[0].value not in ("offset", "max_items")]
    return nodes.Mapping(tuple(kept), node.span)


# ── what a flow mentions ─────────────────────────────────────────────────


def _mentioned(field: Field) -> Iterator[Path]:
    try:
        parts = compile_template(str(field.scalar.value)).leaf.program.parts
    except PlaitError:
        return
    for hole in holes(parts):
        for alternative in hole.alternatives if isinstance(hole, ContextHole) else ():
            match alternative.origin:
                case Path() as path:
                    yield path
                case Extract(origin=path):
                    yield path


def _map_lists(fields: Many[Field], document: nodes.Node) -> Iterator[str]:
    """The lists of `map` that anything behind the map reads."""
    for one in fields:
        if one.phase in ("reduce", "merge", "block"):
            for path in _mentioned(one):
                if path.root == "map":
                    yield from _lists_at(path.keys)
    if any(_conditions_on_map(document)):
        yield from MAP_LISTS


def _lists_at(keys: tuple[str | int, ...]) -> Iterator[str]:
    if not keys:
        yield from MAP_LISTS
    elif keys[0] in MAP_LISTS:
        yield str(keys[0])


def _conditions_on_map(node: nodes.Node) -> Iterator[bool]:
    """Tests of a `when` that is data and looks at the map as a whole, or at one of its lists."""
    match node:
        case nodes.Mapping(entries):
            path = node.get("path")
            if isinstance(path, nodes.Scalar):
                yield re.match(r"map(\.(results|results_json|outputs)\b|$)", str(path.value)) is not None
            for _, value in entries:
                yield from _conditions_on_map(value)
        case nodes.Sequence(items):
            for item in items:
                yield from _conditions_on_map(item)


def _tracked(fields: Many[Field]) -> Iterator[str]:
    """Those of `step`, `workflow` and `git` whose changes or state the flow asks for."""
    for one in fields:
        for path in _mentioned(one):
            if path.root == "git" or (path.root in ("step", "workflow") and _asks_for_changes(path)):
                yield path.root


def _asks_for_changes(path: Path) -> bool:
    return not path.keys or path.keys[0] in CHANGES


# ── items of a map ───────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class MapItems:
    """The step that finds the items of a map and writes them down, before the first of them is worked on."""

    input: InputSpec
    selection: Selection
    id: Template | None
    fingerprint: str
    allow_outside: bool = False
    strict: bool = False
    name: str = "items"
    kind: str = "items"
    title: str = "the items"
    policy: Policy = PLAIN
    inner: tuple[Step, ...] = ()

    def run(self, turn: Turn) -> Json:
        run = working(turn.run)
        if run.rehearsal is not None:
            return self._rehearsed(turn)
        spooled = write_spool(keyed(self._found(turn), self.id), self._file(turn))
        return {"count": spooled.count, "digest": spooled.digest}

    def read(self, value: Json, turn: Turn) -> Iterator[ItemWork]:
        if not isinstance(value, dict):
            return
        if "items" in value:
            yield from (ItemWork(order, key, item) for order, (key, item) in enumerate(value["items"]))
            return
        file = self._file(turn)
        if not turn.run.fresh:
            expect_spool(file, Spooled(int(value["count"]), str(value["digest"])))
        for order, key, item in read_spool(file):
            yield ItemWork(order, key, item)

    def _file(self, turn: Turn) -> str:
        return os.path.join(working(turn.run).folder, "items.jsonl")

    def _found(self, turn: Turn) -> Iterator[Json]:
        items = read_items(
            self.input,
            directory=turn.directory,
            run_command=lambda command: self._printed(command, turn),
            values=turn.scope,
            json_path=self.selection.json_path,
            allow_outside=self.allow_outside,
        )
        return select(items, replace(self.selection, json_path=None))

    def _printed(self, command: Template, turn: Turn) -> Iterator[bytes]:
        run, left = working(turn.run), turn.time_left()
        bound = as_shell(command, turn.scope, strict=self.strict)
        timeout = COMMAND_TIMEOUT if left is None else min(left, COMMAND_TIMEOUT)
        return run.hands.lines(bound, cwd=turn.directory, env=turn.env, timeout=timeout, stop=run.stop)

    def _rehearsed(self, turn: Turn) -> Json:
        """The items that are known without running anything."""
        run = working(turn.run)
        if isinstance(self.input, CommandInput):
            run.rehearse(turn, "items", as_shell(self.input.command, turn.scope, strict=self.strict).shown)
            return {"count": 0, "items": []}
        try:
            found = [[key, item] for key, item in _first(keyed(self._found(turn), self.id))]
        except InputError as error:
            run.rehearse(turn, "items", f"not known yet: {run.mask(error.what)}")
            found = []
        return {"count": len(found), "items": found}


def _first(items: Iterator[tuple[str, Json]]) -> Iterator[tuple[str, Json]]:
    from itertools import islice

    return islice(items, MOST_REHEARSED)


# ── actions with something around them ───────────────────────────────────


@dataclass(frozen=True, slots=True)
class Watched:
    """An action of which a commit is wanted, or whose new files get names."""

    action: Action
    commit_required: bool = False
    id: str = ""
    outputs: Mapping[str, str] = field(default_factory=dict)

    @property
    def inner(self) -> tuple[Step, ...]:
        return tuple(getattr(self.action, "inner", ()))

    def run(self, turn: Turn) -> dict[str, Json]:
        tracker = working(turn.run).changes
        before = None if tracker is None else tracker.snapshot(turn.directory)
        value = self.action.run(turn)
        if tracker is None or not value:  # a dry run
            return value
        changed = tracker.since(before, turn.directory)
        if self.commit_required and not changed["commits"]:
            what = "the step left no commit behind, and one is required"
            raise StepError(Failure(what, "incomplete", exit_code=1, output={**value, "exit_code": 1}))
        if not self.outputs:
            return value
        inner = value.get("captures")
        return {
            **value,
            "captures": {**(inner if isinstance(inner, dict) else {}), self.id: self._files(changed)},
        }

    def _files(self, changed: Mapping[str, Json]) -> dict[str, Json]:
        """Each output: its file, or a list if there are several."""
        gone = set(changed["files_deleted"])
        files = [name for name in changed["files_changed"] if name not in gone]
        found = {
            name: [
                file
                for file in files
                if fnmatchcase(file, pattern) or fnmatchcase(os.path.basename(file), pattern)
            ]
            for name, pattern in self.outputs.items()
        }
        return {name: files[0] if len(files) == 1 else files for name, files in found.items()}


@dataclass(frozen=True, slots=True)
class ExtractOutput:
    """One name of `capture_outputs`."""

    name: str
    source: str = "stdout"
    pattern: str | None = None
    json_path: str | None = None
    max_size: int = 1 << 20
    default: Json = None
    has_default: bool = False
    multiline: str = "preserve"

    def of(self, value: Mapping[str, Json]) -> Json:
        text = self._text(value)
        if len(text.encode("utf-8", "surrogatepass")) > self.max_size:
            raise _not_captured(self.name, f"is larger than {self.max_size:,} bytes")
        found: Json = text
        if self.pattern is not None:
            found = _group(self.pattern, text)
        if self.json_path is not None:
            found = _inside_json(self.json_path, text)
        if found is UNDEFINED:
            if not self.has_default:
                raise _not_captured(self.name, "does not hold what is sought")
            return self.default
        return self._lines(found) if isinstance(found, str) else found

    def _text(self, value: Mapping[str, Json]) -> str:
        output, errors = str(value.get("output") or ""), str(value.get("stderr") or "")
        whole = {"stdout": output, "stderr": errors}.get(self.source, output + errors)
        return whole.rstrip("\n")

    def _lines(self, text: str) -> Json:
        lines = text.split("\n")
        match self.multiline:
            case "join":
                return " ".join(line.strip() for line in lines)
            case "first_line":
                return lines[0]
            case "last_line":
                return lines[-1]
            case "array":
                return [line for line in lines if line.strip()]
        return text


@dataclass(frozen=True, slots=True)
class Extracting:
    """An action parts of whose output get names."""

    action: Action
    extracts: tuple[ExtractOutput, ...]

    @property
    def inner(self) -> tuple[Step, ...]:
        return tuple(getattr(self.action, "inner", ()))

    def run(self, turn: Turn) -> dict[str, Json]:
        value = self.action.run(turn)
        if not value:  # a dry run
            return value
        known = value.get("captures")
        found = {extract.name: extract.of(value) for extract in self.extracts}
        return {**value, "captures": {**(known if isinstance(known, dict) else {}), **found}}


def _with_extracts(steps: Steps, said: Said) -> Steps:
    """Setup, with the names of `capture_outputs`; InputError if one names a step that is not there."""
    wanted: dict[int, list[ExtractOutput]] = {}
    problems: list[Problem] = []
    for name, node in said.entries("capture_outputs"):
        at, extract = _extract(name, node, said.scope)
        if at >= len(steps.steps) or steps.steps[at].action is None:
            what = f"'{name}' is to be the output of step {at}, and setup has {len(steps.steps)} steps"
            problems.append(
                Problem(
                    what,
                    node.span if isinstance(node, nodes.Scalar) else said.span("capture_outputs"),
                    "count from 0",
                    code="wrong-type",
                )
            )
        problems += _bad_pattern(extract, node)
        wanted.setdefault(at, []).append(extract)
    if problems:
        raise InputError.together(problems)
    works = [
        replace(
            work,
            action=Extracting(work.action, tuple(wanted[at])),
            fingerprint=joined([work.fingerprint, _digest([repr(one) for one in wanted[at]])]),
        )
        if at in wanted and work.action is not None
        else work
        for at, work in enumerate(steps.steps)
    ]
    return sequence(steps.name, works, kind=steps.kind, title=steps.title, policy=steps.policy)


def _extract(name: str, node: nodes.Node, scope: Scope) -> tuple[int, ExtractOutput]:
    if not isinstance(node, nodes.Mapping):
        at = node.data()
        return at if isinstance(at, int) else 0, ExtractOutput(name)
    said = Said("captured", node, scope)
    default = said.get("default")
    return said.whole("command_index") or 0, ExtractOutput(
        name,
        said.text("source") or "stdout",
        said.text("pattern"),
        said.text("json_path"),
        said.whole("max_size") or 1 << 20,
        None if default is None else default.data(),
        default is not None,
        said.text("multiline") or "preserve",
    )


def _bad_pattern(extract: ExtractOutput, node: nodes.Node) -> Iterator[Problem]:
    span = node.entries[0][0].span if isinstance(node, nodes.Mapping) else node.span
    if extract.pattern is not None:
        try:
            OPERATORS["regex"].build(extract.pattern)
        except RefusedError as refused:
            yield refused.problem(span, begin=f"the pattern of '{extract.name}' is")


def _group(pattern: str, text: str) -> Json:
    """The first group that took part, or the whole match; UNDEFINED without one."""
    import re2

    found = re2.search(pattern, text)
    if found is None:
        return UNDEFINED
    group = found.group(1) if found.re.groups else None
    return found.group(0) if group is None else group


def _inside_json(path: str, text: str) -> Json:
    import json

    from plait.template.grammar import parse_path
    from plait.template.program import walk

    try:
        data = json.loads(text)
        keys = parse_path(
            "value" if path in ("$", "") else f"value.{path.removeprefix('$').lstrip('.')}"
        ).keys
    except (ValueError, RecursionError, InputError):
        return UNDEFINED
    return walk(data, keys)


def _not_captured(name: str, why: str) -> StepError:
    return StepError(Failure(f"the output to be captured as '{name}' {why}", "capture"))
