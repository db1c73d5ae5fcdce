"""The names that parts of a document declare: captures, variables, parameters, secrets."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator

from plait import schema
from plait.core.documents import Mapping, Node, Scalar, Sequence
from plait.core.documents.nodes import map_entries, map_keys, text_field, text_value
from plait.core.errors import InputError, PlaitError
from plait.core.hints import Final
from plait.core.values import NOT_KNOWN, Json
from plait.lang.analysis.names import (
    BEHIND_STEPS,
    BUILTIN_ROOTS,
    CONFIG_NAMES,
    ENDED,
    BuiltinName,
    template_fields,
)
from plait.lang.analysis.references import mentions_item
from plait.lang.environment import env_files, read_env_file
from plait.lang.parameters import flow_parameters
from plait.lang.workflow.compose import Block, Blocks
from plait.template.compiled import compile_text
from plait.template.nodes import Alternative, ContextPlaceholder, Path
from plait.template.profiles import profile_named

_SHELL_STEPS: Final = ("shell", "test")
ANY_NAME: Final = BuiltinName(
    "…", (), "whatever something that could not be read would have named", offered=False
)
"""A name that no template can use. Where it is declared, unknown names may exist."""


# ── of steps ─────────────────────────────────────────────────────────────

CAPTURING: Final = ("capture_output", "capture")
KIND_OF_FORMAT: Final = {"number": "a number", "lines": "a list", "boolean": "true or false"}
"""The type of a capture, by its format."""


def names_in_unread(node: Node, *, of_step: bool = False) -> Iterator[BuiltinName]:
    """Names below a node that the schema does not know; a field of a step may be a misspelt
    capture.
    """
    if of_step and (name := text_value(node)) and name.isidentifier():
        yield BuiltinName(name, (), "captured, perhaps", offered=False)
    match node:
        case Sequence(items):
            for item in items:
                yield from names_in_unread(item)
        case Mapping(entries):
            yield from captured_names(node)
            for name in map_keys(node.get("capture_outputs")):
                yield BuiltinName(name, (), "captured")
            for _, value in entries:
                yield from names_in_unread(value)


def handler_captures(block: Block) -> Iterator[BuiltinName]:
    """Names that failure handlers of its steps capture; they exist after a failure, too."""
    for step in block.steps:
        if not isinstance(step, Mapping):
            continue
        for place in (step, step.get("test")):
            handler = place.get("on_failure") if isinstance(place, Mapping) else None
            yield from () if handler is None else names_in_unread(handler)
        used = block.home.get(text_field(step, "use") or "")
        yield from () if used is None else handler_captures(used)


def names_after_step(step: Node) -> list[BuiltinName]:
    """The names that the steps after a step know without a capture."""
    if isinstance(step, Mapping):
        runs_shell = any(step.get(key) is not None for key in _SHELL_STEPS)
    else:
        runs_shell = not (text_value(step) or "/").startswith("/")
    return [BEHIND_STEPS[name] for name in (("last", "shell") if runs_shell else ("last",))]


def captured_names(step: Mapping) -> Iterator[BuiltinName]:
    for key, value in step.entries:
        if key.value in CAPTURING and (captured := text_value(value)):
            kind = KIND_OF_FORMAT.get(text_field(step, "capture_format") or "")
            yield BuiltinName(captured, (), "captured", kind=kind)
    found = map_keys(step.get("outputs"))
    if (own := text_field(step, "id")) and found:
        yield BuiltinName(own, (), "files that a step produced", tuple(found))


def step_id_name(step: Mapping) -> BuiltinName | None:
    """The id of a step as a name of its result; with `outputs`, the name means its files."""
    own = text_field(step, "id")
    return (
        BuiltinName(own, (), "what a step gave", ENDED)
        if own and not map_keys(step.get("outputs"))
        else None
    )


def names_given(document: Node, blocks: Blocks) -> frozenset[str]:
    """Names of the head and of all captures; the id of a step never replaces them."""
    used = [
        step for block in (*blocks.own.values(), *blocks.imported.values()) for step in block.steps
    ]
    captured = {name.name for part in (document, *used) for name in names_in_unread(part)}
    from_files = {name.name for name in env_file_names(document)}
    return names_of_head(document) | captured | from_files | BUILTIN_ROOTS


def env_names(
    node: Node | None, known: Callable[[str], tuple[Json, ...]] | None = None
) -> Iterator[BuiltinName]:
    """The variables of a step or a phase."""
    for place in (node, node.get("metadata")) if isinstance(node, Mapping) else ():
        for name, value in map_entries(place.get("env") if isinstance(place, Mapping) else None):
            made_of = possible_values(value, known) if known is not None else ()
            yield BuiltinName(name, (), "declared under env", in_environment=True, values=made_of)


def env_before_items(node: Mapping, declared: Container[str]) -> Iterator[BuiltinName]:
    """The variables of a map that the command of its input gets: those that use no item."""
    env = node.get("env")
    values = (
        {str(key.value): value for key, value in env.entries} if isinstance(env, Mapping) else {}
    )
    for name in env_names(node):
        if name.name not in values or not mentions_item(values[name.name], declared):
            yield name


def names_before_items(document: Node) -> frozenset[str]:
    """The names that exist where the items of a map are found: of the head, setup and blocks."""
    parts = (
        [document.get(key) for key in ("setup", "blocks")] if isinstance(document, Mapping) else ()
    )
    captured = (name.name for part in parts if part is not None for name in names_in_unread(part))
    return names_of_head(document).union(captured)


# ── of the head ──────────────────────────────────────────────────────────


def names_of_head(document: Node) -> frozenset[str]:
    """The names that the head of a document declares."""
    return frozenset(name.name for name in declared_names(document))


def declared_names(document: Node) -> Iterator[BuiltinName]:
    """Names that the head of a document declares: parameters, variables, the environment block."""
    if not isinstance(document, Mapping):
        return
    values = _parameter_values(document)
    for key in ("vars", "env", "secrets"):
        given = key != "vars"
        if key == "secrets":
            names = map_keys(document.get(key))
            yield from (
                BuiltinName(name, (), "declared under secrets", in_environment=True)
                for name in names
            )
            continue
        for name, node in map_entries(document.get(key)):
            made_of = possible_values(node, lambda root: values.get(root, ()))
            yield BuiltinName(
                name, (), f"declared under {key}", in_environment=given, values=made_of
            )
    profiles = document.get("profiles")
    for _, profile in profiles.entries if isinstance(profiles, Mapping) else ():
        names = map_keys(profile)
        yield from (
            BuiltinName(name, (), "declared in a profile", in_environment=True) for name in names
        )
    for name in (*_parameters(document.get("parameters")), *_parameters(document.get("inputs"))):
        yield BuiltinName(name, (), "declared", values=values.get(name, ()))


def constant_state(document: Node) -> dict[str, Json]:
    """The state of a graph; a name that a node assigns is unknown."""
    inner = document.get("config") if isinstance(document, Mapping) else None
    body = inner if isinstance(inner, Mapping) and inner.get("nodes") is not None else document
    state = body.get("state") if isinstance(body, Mapping) else None
    if not isinstance(body, Mapping) or not isinstance(state, Mapping):
        return {}
    written = {"_last_error", "item"}
    for _, node in map_entries(body.get("nodes")):
        if isinstance(node, Mapping):
            written.update(map_keys(node.get("assign")))
            written.update(filter(None, (text_field(node, key) for key in ("collect", "as"))))
    return {
        name: NOT_KNOWN if name in written else node.data() for name, node in map_entries(state)
    }


def given_at_start(document: Mapping) -> set[str]:
    """Names of parameters and secrets: their values are not in the file."""
    parameters = (*_parameters(document.get("parameters")), *_parameters(document.get("inputs")))
    return {*map_keys(document.get("secrets")), *parameters}


def _parameter_values(document: Mapping) -> dict[str, tuple[Json, ...]]:
    """The default and the choices of each parameter that begin like an option."""
    node = document.get("parameters")
    if node is None or schema.validate(node, schema.PARAMETERS):
        return {}  # the schema reports it
    try:
        parameters = flow_parameters(document)
    except PlaitError:
        return {}
    return {
        name: like_options([*parameter.choices, parameter.default])
        for name, parameter in parameters.items()
    }


def like_options(values: Iterable[Json]) -> tuple[Json, ...]:
    return tuple(value for value in values if isinstance(value, str) and value[:1] in ("-", "+"))


def possible_values(node: Node, known: Callable[[str], tuple[Json, ...]]) -> tuple[Json, ...]:
    """The possible values of a text that is one placeholder with a plain name."""
    written = text_value(node)
    if written is None or not written.startswith("$"):
        return ()
    match compile_text(written, profile_named("workflow")).parts:
        case (ContextPlaceholder(alternatives=(Alternative(Path(root, ()), ()),), filters=()),):
            return known(root)
    return ()


def literal_items(node: Node | None) -> tuple[Json, ...]:
    """The items of a literal list that begin like an option."""
    items = node.items if isinstance(node, Sequence) else ()
    return like_options(item.value for item in items if isinstance(item, Scalar))


def env_file_names(document: Node) -> Iterator[BuiltinName]:
    """The variables of env files; a missing file may have any."""
    node = document.get("env_files") if isinstance(document, Mapping) else None
    if node is None:
        return
    for file in env_files(node):
        try:
            found = read_env_file(file)
        except InputError:
            found = None  # reported by the check of env files
        if found is None:
            yield ANY_NAME
        else:
            names = (name for name, _ in found.written)
            yield from (
                BuiltinName(name, (), "a variable of an env file", in_environment=True)
                for name in names
            )


_DECLARING: Final = ("vars", "env", "secrets", "profiles", "parameters")


def misplaced_names(document: Node) -> Iterator[BuiltinName]:
    """Names in wrong parts of a head: a list instead of a map, a misspelt key."""
    for key, node in document.entries if isinstance(document, Mapping) else ():
        listed = isinstance(node, Sequence) and key.value != "parameters"
        if key.value in _DECLARING and (listed or isinstance(node, Scalar)):
            yield ANY_NAME
        elif key.value not in template_fields("workflow"):
            for name in (*_parameters(node), *(name.name for name in names_in_unread(node))):
                yield BuiltinName(name, (), "declared")


def _parameters(node: Node | None) -> Iterator[str]:
    """`[a, {name: b}]`, `{a: …}`, or `{required: […], optional: […]}`."""
    match node:
        case Sequence(items):
            for item in items:
                name = text_value(item) or (
                    text_field(item, "name") if isinstance(item, Mapping) else None
                )
                if name:
                    yield name
        case Mapping():
            for key, value in node.entries:
                if key.value in ("required", "optional") and isinstance(value, Sequence):
                    yield from _parameters(value)
                else:
                    yield str(key.value)


def input_names(
    document: Node, profile: str, given: dict[str, BuiltinName]
) -> frozenset[str] | None:
    """The inputs of a prompt, directive, graph or tool; None if the document declares none."""
    declared = {*given, *map_keys(document.at("config_schema.properties"))}
    if not declared:
        return None
    own = {*map_keys(document.at("config")), *CONFIG_NAMES} if profile == "config" else set()
    return frozenset(declared | own)
