"""Find the templates of a document, each with the names that exist at its place.

Steps are read in the order in which they run: later steps know the captures of earlier ones.
Captures of setup reach map, reduce and merge; captures of an item end with the item.  The steps of
a block are read where it is used.  The action of a step and its handlers know its variables; its
condition does not, because it is evaluated first.  Handlers for success and failure exclude each
other: a capture of one is not known in the other.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Iterable, Iterator
from itertools import islice

from plait.core.documents import Mapping, Node, Scalar, Sequence
from plait.core.documents.nodes import map_keys, text_field, text_value
from plait.core.errors import PlaitError, Problem
from plait.core.hints import Final, TypeAlias
from plait.core.records import dataclass, field, replace
from plait.core.values import NOT_KNOWN, Json
from plait.lang.analysis.assumed_values import Assumed
from plait.lang.analysis.declarations import (
    ANY_NAME,
    captured_names,
    constant_state,
    declared_names,
    env_before_items,
    env_file_names,
    env_names,
    given_at_start,
    handler_captures,
    input_names,
    literal_items,
    misplaced_names,
    names_after_step,
    names_before_items,
    names_given,
    names_in_unread,
    step_id_name,
)
from plait.lang.analysis.names import (
    BEHIND_STEPS,
    COMMAND_KEYS,
    DOCUMENT_SHAPES,
    HANDLER_NAMES,
    KNOWN_INSIDE,
    LITERALLY,
    TREE,
    AtStart,
    BuiltinName,
    Each,
    Either,
    Listed,
    NotTemplate,
    Shape,
    Shell,
    TemplateKind,
    Text,
    Tree,
    When,
    builtin_names,
    detect_profile,
    names_everywhere_in,
    strings,
    template_fields,
)
from plait.lang.workflow.compose import Blocks
from plait.schema import text_template, to_template
from plait.template.shell.places import Dialect
from plait.template.sinks import as_sealed_envs

STEP_LISTS: Final = ("agent_template", "steps", "commands", "do", "tasks", "nodes")

_PHASES: Final = ("setup", "map", "reduce", "merge")
_AFTERWARDS: Final = ("on_exit_code", "validate", "on_incomplete", "on_success", "on_failure")
"""Fields that are performed after an action, in this order."""
_OF_COMMANDS: Final = ("handler", "incomplete", "validate")
"""Maps whose commands are steps in order."""
_BEFORE_ITEMS: Final = ("input", "max_parallel", "timeout", "max_items", "offset")
"""Fields of a map that are read before any item is known."""
_FOUND: Final = BuiltinName("item", (), "the item that was found")
_BEFORE_ENV: Final = ("when", "env", "metadata", "timeout", "retry", "parallel", "max_items")
"""Fields of a step that do not know its variables."""


class KnownNames(abc.Mapping[str, BuiltinName]):
    """The names that exist at one place: built-in, declared, or captured by an earlier step."""

    __slots__ = ("_apart", "_captured", "_limit", "_outer", "phase")

    def __init__(
        self,
        phase: str,
        captured: dict[str, tuple[int, BuiltinName]],
        limit: int,
        outer: KnownNames | None = None,
        *,
        apart: bool = False,
    ) -> None:
        self.phase = phase
        self._apart = apart
        self._captured = captured
        self._limit = limit
        self._outer = outer

    def __getitem__(self, name: str) -> BuiltinName:
        found = self._find_capture(name) or names_everywhere_in(self.phase).get(name)
        if found is None:
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        """The names in the order of messages: the most specific first."""
        every, here = builtin_names("flow"), builtin_names(self.phase)
        behind = BEHIND_STEPS.keys() & here.keys()
        yield from (name for name in here if name not in every and not self._find_capture(name))
        yield from (name for name in self._capture_names() if name not in behind)
        yield from (
            name
            for name in here
            if name in every and (name in behind) is bool(self._find_capture(name))
        )

    def __len__(self) -> int:
        return len(names_everywhere_in(self.phase)) + sum(1 for _ in self._capture_names())

    def _find_capture(self, name: str, *, apart: bool = False) -> BuiltinName | None:
        """The name, or None.  `apart`: the place is in an inner list, which knows only captured
        names.
        """
        index, found = self._captured.get(name, (self._limit, None))
        if index < self._limit and not (apart and _is_left_behind(found)):
            return found
        if self._outer is None:
            return None
        return self._outer._find_capture(name, apart=apart or self._apart)

    def _capture_names(self, *, apart: bool = False) -> Iterator[str]:
        if self._outer is not None:  # a truth test would count all names
            yield from self._outer._capture_names(apart=apart or self._apart)
        for name, (_, found) in islice(self._captured.items(), self._limit):
            hides = self._outer is not None and self._outer._find_capture(
                name, apart=apart or self._apart
            )
            if not hides and not (apart and _is_left_behind(found)):
                yield name


def _open(known: KnownNames) -> abc.Mapping[str, BuiltinName]:
    """The names whose values may be assumed: none in a block, since each use may pass others."""
    return {} if known.phase == "block" else known


def _is_left_behind(name: BuiltinName | None) -> bool:
    """Is it the built-in name, not a name of the author with the same spelling?"""
    return name is not None and name is BEHIND_STEPS.get(name.name)


SHELL_TOOL: Final = "core/shell"


@dataclass(frozen=True, slots=True)
class TemplateField:
    """A string that is a template; `known` are the names at its place.

    `declared` are its inputs; None if the document declares none.
    """

    path: str
    scalar: Scalar
    phase: str
    known: KnownNames
    shell: bool = False
    when: bool = False
    """It is an expression with placeholders."""
    declared: frozenset[str] | None = None
    dialect: Dialect = "sh"
    """The shell that runs it, if it is shell text."""
    strict: bool = False
    """True if a missing name is an error in a run."""
    is_script: bool = False
    """It is shell text for a tool: variables that it sets are those of the script."""
    root: Node | None = field(default=None, compare=False)
    """The tree that is filled together with it; None if it is filled alone."""
    is_sized: bool = True
    """Is its length checked?  A variable is checked together with the others of its map.
    """


@dataclass(frozen=True, slots=True)
class TemplateFields:
    """The templates of a document and its lists of steps, in the order of a run."""

    fields: tuple[TemplateField, ...]
    lists: tuple[tuple[Node, ...], ...] = ()
    maps: tuple[tuple[str, Mapping], ...] = ()
    """Every map that a table describes, with the name of the table."""
    calls: tuple[tuple[Mapping, KnownNames], ...] = ()
    """Steps that call another workflow file, and the names that it inherits."""
    too_long: tuple[Problem, ...] = ()
    """Variables that are too long together."""


def find_templates(
    document: Node,
    profile: str,
    *,
    names: Iterable[str] = (),
    blocks: Blocks | None = None,
    whole: bool = True,
) -> TemplateFields:
    """The template fields of a document; `names` are known everywhere.

    `blocks` must not use themselves.  `whole`: all files of the flow could be read.  In a document
    without the shape of its profile, every string is a template.
    """
    given = [BuiltinName(name, (), "given") for name in names]
    reader = _Reader(document, profile, given if whole else [*given, ANY_NAME], blocks or Blocks())
    if detect_profile(document) != profile and not _has_shape(document, profile):
        reader.whole(document, profile)
    elif profile == "workflow":
        reader.workflow(document)
    else:
        reader.shape(document, DOCUMENT_SHAPES.get(profile, profile), "", reader.frame(profile))
    return TemplateFields(
        tuple(reader.fields),
        tuple(reader.lists),
        tuple(reader.maps),
        tuple(reader.calls),
        tuple(reader.too_long),
    )


def _has_shape(document: Node, profile: str) -> bool:
    shape = template_fields(DOCUMENT_SHAPES.get(profile, profile))
    return isinstance(document, Mapping) and any(document.get(key) is not None for key in shape)


@dataclass(slots=True)
class _Frame:
    """The names of one place. They grow with each step; a child sees those that its parent had
    at that time.

    Nothing is copied: a long flow has as many places as steps, and each is a view of one table.
    """

    phase: str
    outer: KnownNames | None = None
    captured: dict[str, tuple[int, BuiltinName]] = field(default_factory=dict)
    apart: bool = False
    """It starts an inner list, which knows only the captures of the steps before it."""

    def add(self, names: Iterable[BuiltinName]) -> None:
        for name in names:
            at, known = self.captured.setdefault(name.name, (len(self.captured), name))
            if _is_left_behind(known) or _is_left_behind(name):
                self.captured[name.name] = (at, name if _is_left_behind(known) else known)
            elif known.kind != name.kind:  # captured twice, in two formats
                self.captured[name.name] = (at, replace(known, kind=None))

    def child(
        self, more: Iterable[BuiltinName] = (), *, phase: str | None = None, apart: bool = False
    ) -> _Frame:
        inner = _Frame(phase or self.phase, self.visible_names(), apart=apart or phase is not None)
        inner.add(more)
        return inner

    def captures(self) -> list[BuiltinName]:
        """The names that the steps after this place know, too."""
        return [name for _, name in self.captured.values() if not _is_left_behind(name)]

    def visible_names(self) -> KnownNames:
        return KnownNames(
            self.phase, self.captured, len(self.captured), self.outer, apart=self.apart
        )


def assumed(known: abc.Mapping[str, BuiltinName], *, without: abc.Container[str] = ()) -> Assumed:
    """The assumed values at a place, without names that mean something else there."""
    return Assumed(_Values(known, without))


class _Values(abc.Mapping[str, Json]):
    """The values of names that are written in the file."""

    __slots__ = ("_known", "_without")

    def __init__(self, known: abc.Mapping[str, BuiltinName], without: abc.Container[str]) -> None:
        self._known = known
        self._without = without

    def __getitem__(self, name: str) -> Json:
        return NOT_KNOWN if name in self._without else self._known[name].value

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


def _values(frame: _Frame, name: str) -> tuple[Json, ...]:
    known = frame.visible_names().get(name)
    return () if known is None else known.values


class _Reader:
    def __init__(
        self, document: Node, profile: str, given: list[BuiltinName], blocks: Blocks
    ) -> None:
        self.fields: list[TemplateField] = []
        self.lists: list[tuple[Node, ...]] = []
        self.calls: list[tuple[Mapping, KnownNames]] = []
        self.maps: list[tuple[str, Mapping]] = []
        self.blocks = blocks
        self.env: tuple[BuiltinName, ...] = ()
        """The variables of the phase, which each of its steps gets."""
        self.phase: Node | None = None
        """The phase with those variables."""
        self.too_long: list[Problem] = []
        self.rounds: tuple[Json, ...] = ()
        """Literal items of the current loop that begin like an option."""
        self.extracted: dict[int, list[BuiltinName]] = {}
        """Names of `capture_outputs`, by the identity of their step."""
        self.is_workflow = profile == "workflow"
        self.strict = self.is_workflow and _flag(document, "strict") is True
        unplaced = (
            (*misplaced_names(document), *env_file_names(document)) if profile == "workflow" else ()
        )
        self.given = {name.name: name for name in (*unplaced, *declared_names(document), *given)}
        self.declared = input_names(document, profile, self.given)
        self._learn_values(document, profile, {name.name for name in given})
        is_plain = (
            {name.name for name in given} | {"state"} if profile == "graph" else set(self.given)
        )
        self.plain = tuple(name for name in self.given.values() if name.name in is_plain)
        """Declared names; in a graph they are `inputs.name`, so there are none."""
        self.taken = names_given(document, blocks) if self.is_workflow else frozenset[str]()
        """Names that the id of a step does not replace."""
        self.before_items = names_before_items(document) if self.is_workflow else frozenset[str]()

    def _learn_values(self, document: Node, profile: str, given: set[str]) -> None:
        """Set the values that the file contains: of the head of a workflow, or of the state
        of a graph.
        """
        if profile == "graph" and (kept := constant_state(document)):
            self.given["state"] = replace(builtin_names("graph")["state"], value=kept)
        heads = ("vars", "env", "profiles", "env_files")
        if not self.is_workflow or not any(
            isinstance(document, Mapping) and document.get(h) for h in heads
        ):
            return
        from plait.lang.static_values import find_static_values

        assert isinstance(document, Mapping)
        known, self.too_long = find_static_values(document, given | given_at_start(document))
        for name, value in known.items():
            if name in self.given:
                self.given[name] = replace(self.given[name], value=value)

    def frame(self, phase: str) -> _Frame:
        """The outermost frame: declared and given names."""
        frame = _Frame(phase)
        frame.add(self.plain)
        return frame

    # ── documents ────────────────────────────────────────────────────────

    def workflow(self, document: Node) -> None:
        if isinstance(document, Sequence):
            self.read(document, Listed(Shape("step")), "", self.frame("flow"))
            return
        assert isinstance(document, Mapping)
        base, head = self.frame("flow"), self.frame("head")
        flow, setup = base.child(), base.child(phase="setup")
        for key in template_fields("workflow"):
            if key not in (*_PHASES, "commands", "steps", "blocks"):
                begin = len(self.fields)
                self._part(document, key, head)
                if key in ("vars", "env", "profiles"):
                    self.fields[begin:] = [
                        replace(field, is_sized=False) for field in self.fields[begin:]
                    ]
        for key in ("commands", "steps"):
            self._part(document, key, flow)
        self._phase(document, "setup", setup)
        self._map(document.get("map"), setup)
        self._phase(document, "reduce", reduce := setup.child(phase="reduce"))
        found = [name for frame in (flow, reduce) for name in frame.captures()]
        self._phase(document, "merge", setup.child(found, phase="merge"))
        self._part(document, "blocks", base.child(phase="block"))

    def _phase(self, document: Mapping, key: str, frame: _Frame) -> None:
        self.env, self.phase = tuple(env_names(document.get(key))), document.get(key)
        nodes = [node for name, node in document.entries if name.value == key]
        for node in nodes:
            self._name_outputs(node)
        self._part(document, key, frame)
        self.env, self.phase = (), None
        for node in nodes:  # also for missing steps, which are reported
            named = map_keys(node.get("capture_outputs")) if isinstance(node, Mapping) else ()
            frame.add(BuiltinName(name, (), "captured") for name in named)

    def _name_outputs(self, phase: Node) -> None:
        named = phase.get("capture_outputs") if isinstance(phase, Mapping) else None
        steps = phase.get("steps") or phase.get("commands") if isinstance(phase, Mapping) else None
        items = steps.items if isinstance(steps, Sequence) else ()
        for name, value in named.entries if isinstance(named, Mapping) else ():
            number = value.get("command_index") if isinstance(value, Mapping) else value
            at = number.value if isinstance(number, Scalar) else 0
            if isinstance(at, int) and 0 <= at < len(items):
                self.extracted.setdefault(id(items[at]), []).append(
                    BuiltinName(str(name.value), (), "captured")
                )

    def _map(self, node: Node | None, setup: _Frame) -> None:
        """Read a map: first the input, with the names of setup; then the id; then the steps
        of an item.
        """
        if not isinstance(node, Mapping):
            return
        setup = setup.child(phase="items")
        inner, found = setup.child(phase="map"), setup.child([_FOUND])
        if values := literal_items(node.get("input")):
            inner.add([replace(_FOUND, values=values)])
            inner = inner.child()
        for key, value in _env_first(node):
            name = str(key.value)
            frame = setup if name in _BEFORE_ITEMS else found if name == "id" else inner
            if name == "input" and isinstance(value, Mapping) and value.get("command") is not None:
                frame = setup.child(env_before_items(node, self.before_items))
            self.env, self.phase = (
                (tuple(env_names(node)), node) if name in STEP_LISTS else ((), None)
            )
            self.read(value, template_fields("map").get(name, LITERALLY), f"map.{name}", frame)
        self.env, self.phase = (), None

    def _part(self, document: Mapping, key: str, frame: _Frame) -> None:
        for name, node in document.entries:
            if name.value == key:
                if key in _PHASES and isinstance(node, Mapping):
                    node = Mapping(tuple(_env_first(node)), node.span)
                self.read(node, template_fields("workflow")[key], key, frame)

    def whole(self, node: Node, profile: str, path: str = "", key: str = "") -> None:
        """Read every string of a document without a known shape."""
        match node:
            case Scalar(str()):
                frame = self.frame("flow" if profile == "workflow" else profile)
                frame.add(BEHIND_STEPS.values() if profile == "workflow" else ())
                self._add(path, node, frame, shell=key == "shell" and profile == "workflow")
            case Sequence(items):
                for index, item in enumerate(items):
                    self.whole(item, profile, f"{path}[{index}]", key)
            case Mapping(entries):
                for name, value in entries:
                    self.whole(value, profile, _under(path, name), str(name.value))

    # ── nodes by their tables ──────────────────────────────────────────────

    def read(self, node: Node, reads: TemplateKind, path: str, frame: _Frame) -> None:
        match reads:
            case NotTemplate():
                return
            case Text():
                for index, item in _items_with_index(node):
                    self._add(f"{path}{index}", item, frame)
            case AtStart():
                self._add(path, node, self.frame("head") if self.is_workflow else frame)
            case Shell():
                for index, item in _items_with_index(node):
                    self._add(f"{path}{index}", item, frame, shell=not index)
            case Tree():
                self._tree(node, path, frame)
            case When():
                self._add(path, node, frame, when=True)
            case Each(inner):
                begin = len(self.fields)
                if isinstance(node, Mapping):
                    for key, value in node.entries:
                        self.read(value, inner, _under(path, key), frame)
                self._unite(node, inner, begin)
            case Listed(inner):
                begin = len(self.fields)
                self._list(node, inner, path, frame)
                self._unite(node, inner, begin)
            case Either():
                self.read(node, reads.read_as(node), path, frame)
            case Shape(name):
                self._shapes(node, name, path, frame)

    def _tree(self, node: Node, path: str, frame: _Frame) -> None:
        begin = len(self.fields)
        for item in strings(node):
            self._add(path, item, frame)
        self._unite(node, TREE, begin)

    def _unite(self, node: Node, inner: TemplateKind, begin: int) -> None:
        """Read a map or a list that is filled as one tree."""
        if isinstance(inner, Tree):
            self.fields[begin:] = [replace(field, root=node) for field in self.fields[begin:]]

    def _list(self, node: Node, inner: TemplateKind, path: str, frame: _Frame) -> None:
        if not isinstance(node, Sequence):
            return
        if _is_step(inner):
            self.lists.append(node.items)
        for index, item in enumerate(node.items):
            is_short = _is_step(inner) and isinstance(item, Scalar)
            self.read(
                item, inner, f"{path}[{index}]", self._in_variables(frame) if is_short else frame
            )
            frame.add(names_after_step(item) if is_short else ())

    def _shapes(self, node: Node, name: str, path: str, frame: _Frame) -> None:
        if isinstance(node, Sequence):
            for index, item in enumerate(node.items):
                self.shape(item, name, f"{path}[{index}]", frame)
        else:
            self.shape(node, name, path, frame)

    def shape(self, node: Node, name: str, path: str, frame: _Frame) -> None:
        if isinstance(node, Scalar):
            self._short(node, name, path, frame)
        if not isinstance(node, Mapping):
            frame.add(names_in_unread(node))
            frame.add(names_after_step(node) if name == "step" else ())
            return
        if name in ("node", "hook"):
            loop = text_field(node, "as") or ("item" if node.get("over") is not None else None)
            more = [BuiltinName(loop, (), "the item of this round")] if loop else []
            frame = frame.child(more, phase="hook" if name == "hook" else "graph")
        if name == "step":
            self._step(node, path, frame)
        else:
            self._entries(node, name, path, frame, frame)

    def _step(self, step: Mapping, path: str, frame: _Frame) -> None:
        own = tuple(env_names(step, lambda name: _values(frame, name)))
        held = self._variables(step, frame) if own or self.env else {}
        inner = self._in_variables(frame, *own, held=held)
        self._entries(step, "step", path, inner, frame)
        if inner is not frame:
            frame.add(name for _, name in inner.captured.values())

    def _in_variables(
        self, frame: _Frame, *own: BuiltinName, held: abc.Mapping[str, Json] | None = None
    ) -> _Frame:
        """The frame of a step: with its variables and those of its phase."""
        known, held = frame.visible_names(), held or {}
        env = [
            replace(known.get(name.name, name), value=held.get(name.name, NOT_KNOWN))
            for name in (*self.env, *own)
        ]
        return frame.child(env).child() if env else frame

    def _variables(self, step: Mapping, frame: _Frame) -> dict[str, Json]:
        """The known values of a step's variables, filled as in a run."""
        places = (self.phase, step.get("metadata"), step)
        written = [place.get("env") for place in places if isinstance(place, Mapping)]
        nodes = {
            str(k.value): v for env in written if isinstance(env, Mapping) for k, v in env.entries
        }
        try:
            templates = {name: text_template(node) for name, node in nodes.items()}
            filled = as_sealed_envs(templates, assumed(_open(frame.visible_names())))
        except PlaitError as error:
            self.too_long += [one for one in error.problems if one.code == "output-too-long"]
            return {}
        return {name: value for name, (value, _) in filled.items()}

    def _entries(self, node: Mapping, name: str, path: str, frame: _Frame, before: _Frame) -> None:
        """Read the fields of a map: the action, then the handlers."""
        self.maps.append((name, node))
        if name == "step" and node.get("workflow") is not None:
            self.calls.append((node, frame.visible_names()))
        first, then = _in_order(node)
        self.rounds = literal_items(node.get("foreach"))
        inner = frame.child() if name == "validate" else frame  # captures of a check end with it
        for key, value in first:
            begin = len(self.fields)
            outer = (
                before
                if key.value in _BEFORE_ENV
                else frame
                if key.value == "result_file"
                else inner
            )
            self._field(key, value, name, path, outer)
            if name in ("step", "node") and key.value != "do":
                self.fields[begin:] = _apply_step_options(node, key, self.fields[begin:])
            if key.value == "params":
                self.fields[begin:] = with_script(node, self.fields[begin:])
            if str(key.value) not in template_fields(name):
                inner.add(names_in_unread(value, of_step=name == "step"))
            if name in _OF_COMMANDS and key.value in COMMAND_KEYS:
                inner.add(
                    [*names_after_step(Mapping(((key, value),), node.span)), *captured_names(node)]
                )
        if name == "step":
            found = self._use(node, path, frame)
            frame.add(
                [*names_after_step(node), *captured_names(node), *self.extracted.get(id(node), ())]
            )
            if (own := step_id_name(node)) is not None and own.name not in self.taken:
                frame.add([own])
            self._afterwards(then, path, frame, found)
            return
        for key, value in then:
            self._field(key, value, name, path, frame)

    def _afterwards(
        self, then: _Entries, path: str, frame: _Frame, found: list[BuiltinName]
    ) -> None:
        """Read the fields after an action, each with the names that can exist there.

            done      on_exit_code 0 → validate → on_success
            failed    on_failure, or on_exit_code of another code

        After a handler that retries the action, each of them may follow.  `found` are the captures
        of an action that succeeded.
        """
        for key, value in then:
            if _is_tried_again(key, value):
                self._field(key, value, "step", path, frame)
        done, failed = frame.child(), list[BuiltinName]()
        done.add(found)
        for key, value in then:
            if _is_tried_again(key, value):
                continue
            for is_done, part in _ways(key, value):
                after = done if is_done else frame.child()
                self._field(key, part, "step", path, after)
                if key.value == "validate":
                    done.add([HANDLER_NAMES["on_incomplete"]])
                failed += () if is_done else after.captures()
        frame.add([*done.captures(), *failed])

    def _field(self, key: Scalar, value: Node, shape: str, path: str, frame: _Frame) -> None:
        field = str(key.value)
        reads = template_fields(shape).get(field, LITERALLY)
        knows = KNOWN_INSIDE.get(field, ())
        if field == "do" and self.rounds:
            knows = tuple(
                replace(name, values=self.rounds) if name.name == "item" else name for name in knows
            )
        if field == "on_exit_code" and isinstance(value, Mapping) and _are_successes(value):
            knows = ()  # no failure
        # Names that exist only inside are kept separate from captures, which may have the same
        # name.
        inner = frame.child(knows).child() if knows or field in _AFTERWARDS else frame
        self.read(value, reads, _under(path, key), inner)
        if inner is not frame and field != "do":  # captures of a round end with it
            frame.add(inner.captures())

    def _use(self, step: Mapping, path: str, frame: _Frame) -> list[BuiltinName]:
        """Read the steps of a block where it is used, and record their captures."""
        used = step.get("use")
        block = self.blocks.get(text_value(used) or "")
        if block is None:
            return [] if used is None else [ANY_NAME]
        held = self._handed(step.get("with"), frame)
        given = [
            BuiltinName(name, (), "given by with", value=held.get(name, NOT_KNOWN))
            for name in (*map_keys(step.get("with")), *block.needs)
        ]
        inner = frame.child(given).child()
        outer, self.blocks = self.blocks, block.home
        self.lists.append(block.steps)
        for index, item in enumerate(block.steps):
            self.shape(item, "step", f"{path}.use[{index}]", inner)
        self.blocks = outer
        frame.add(handler_captures(block))
        return inner.captures()

    def _handed(self, node: Node | None, frame: _Frame) -> dict[str, Json]:
        """The known values that a block gets."""
        if not isinstance(node, Mapping):
            return {}
        try:
            found = to_template(node).render_checked(
                assumed(_open(frame.visible_names())), sealing=True
            )
        except PlaitError:
            return {}  # the check of the template reports it
        return found if isinstance(found, dict) else {}

    def _short(self, node: Scalar, name: str, path: str, frame: _Frame) -> None:
        """Read a step or a handler that is one string: a slash command, or shell text."""
        if name in ("step", "handler", "validate") and isinstance(node.value, str):
            self._add(path, node, frame, shell=name != "step" and not node.value.startswith("/"))

    def _add(
        self, path: str, node: Node, frame: _Frame, *, shell: bool = False, when: bool = False
    ) -> None:
        if isinstance(node, Scalar) and isinstance(node.value, str):
            self.fields.append(
                TemplateField(
                    path,
                    node,
                    frame.phase,
                    frame.visible_names(),
                    shell,
                    when,
                    declared=self.declared,
                    strict=self.strict,
                )
            )


def _is_step(reads: TemplateKind) -> bool:
    match reads:
        case Shape("step"):
            return True
        case Either(kinds):
            return any(getattr(kind, "form", "") == "step" for kind in kinds.kinds)
    return False


def _apply_step_options(
    step: Mapping, key: Scalar, fields: list[TemplateField]
) -> list[TemplateField]:
    """Return the templates of a field of a step, with its strictness and its shell."""
    strict = _flag(step, "strict")
    if strict is not None:
        fields = [replace(field, strict=strict) for field in fields]
    if key.value == "shell" and text_field(step, "interpreter") == "bash":
        fields = [replace(field, dialect="bash") for field in fields]
    return fields


def tool_id_to_call(node: Mapping) -> str:
    """The id of the tool that a step, a node or an action calls."""
    named = text_value(node.get("tool") or node.get("item_id")) or ""
    if not named.startswith(("rye/", "tool:")):
        return named
    from plait.tools.spaces import current_id

    try:
        return current_id(named)
    except PlaitError:
        return named  # the check of the id reports it


def with_script(call: Mapping, fields: list[TemplateField]) -> list[TemplateField]:
    """The templates of the parameters of a call; the script of a shell tool is shell text."""
    if tool_id_to_call(call) != SHELL_TOOL:
        return fields
    params = call.get("params")
    command, shell = (
        params.get(key) if isinstance(params, Mapping) else None for key in ("command", "shell")
    )
    dialect: Dialect = "bash" if text_value(shell) == "bash" else "sh"
    fields = [
        replace(field, root=None) for field in fields
    ]  # a script is bound, not filled with the tree
    return [
        replace(field, is_script=True, dialect=dialect) if field.scalar is command else field
        for field in fields
    ]


def _flag(node: Node, key: str) -> bool | None:
    value = node.get(key) if isinstance(node, Mapping) else None
    return value.value if isinstance(value, Scalar) and isinstance(value.value, bool) else None


def _ways(key: Scalar, value: Node) -> Iterator[tuple[bool, Node]]:
    """Yield the fields after an action, and whether each follows a success."""
    if key.value != "on_exit_code" or not isinstance(value, Mapping):
        yield key.value in ("validate", "on_success"), value
        return
    for entry in value.entries:
        part = Mapping((entry,), value.span)
        yield _are_successes(part), part


def _are_successes(codes: Mapping) -> bool:
    return not any(str(code.value).strip("0") for code, _ in codes.entries)


def _is_tried_again(key: Scalar, value: Node) -> bool:
    """Is it a handler that may retry the step?"""
    if key.value == "test" and isinstance(value, Mapping):
        value = value.get("on_failure") or value
    elif key.value != "on_failure":
        return False
    if not isinstance(value, Mapping):
        return (text_value(value) or "").startswith("/")
    for name in ("max_attempts", "max_retries", "retry_original"):
        if (node := value.get(name)) is not None:
            return not isinstance(node, Scalar) or node.value not in (0, False)
    return value.get("steps") is None and value.get("commands") is None and _has_agent(value)


def _has_agent(handler: Mapping) -> bool:
    return any(handler.get(key) is not None for key in ("claude", "agent"))


_Entries: TypeAlias = list[tuple[Scalar, Node]]


def _in_order(node: Mapping) -> tuple[_Entries, _Entries]:
    """The fields of a map in two groups: the action, and the fields after it.

    Fields inside `test` count like fields beside it.
    """
    first: _Entries = []
    after: list[tuple[int, tuple[Scalar, Node]]] = []
    for key, value in node.entries:
        if key.value in _AFTERWARDS:
            after.append((_AFTERWARDS.index(str(key.value)), (key, value)))
            continue
        within = value.entries if key.value == "test" and isinstance(value, Mapping) else ()
        inner = [entry for entry in within if entry[0].value in _AFTERWARDS]
        if inner:
            after.append((len(_AFTERWARDS), (key, Mapping(tuple(inner), value.span))))
            value = Mapping(tuple(entry for entry in within if entry not in inner), value.span)
        first.append((key, value))
    return first, [entry for _, entry in sorted(after, key=lambda one: one[0])]


def _env_first(phase: Mapping) -> _Entries:
    """The fields of a phase, with its variables first: they know no capture of its steps."""
    return sorted(phase.entries, key=lambda entry: entry[0].value != "env")


def _items_with_index(node: Node) -> Iterator[tuple[str, Node]]:
    if isinstance(node, Sequence):
        yield from ((f"[{index}]", item) for index, item in enumerate(node.items))
    else:
        yield "", node


def _under(path: str, key: Scalar) -> str:
    return f"{path}.{key.value}" if path else str(key.value)
