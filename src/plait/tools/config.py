"""The config of a chain: merged, then filled once.

Primitive first, tool last; maps are merged deeply. Values that an author wrote may refer to other
such values (`{name}`) and to the environment (`${NAME}`). They are filled in the order of their
dependencies; a cycle is an error. A caller's value is never searched for placeholders. A caller's
parameter replaces a key of the same name only if the tool's schema declares it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence

from plait.core.digests import sha256_hex
from plait.core.errors import InputError, Problem, closest_name
from plait.core.hints import Any, Final
from plait.core.json_schema import surely_meets, validator
from plait.core.records import dataclass
from plait.core.safe_files import read_below
from plait.core.source import Source, Span
from plait.core.values import (
    Json,
    Secret,
    contains_unknown,
    deep_copy,
    format_given,
    too_deep_error,
)
from plait.template.compiled import Budget
from plait.template.nodes import ParamPlaceholder, placeholders
from plait.template.sinks import is_unresolved, render_json_value
from plait.template.template import Template, compile_template
from plait.tools.chain import Chain
from plait.tools.spaces import Space, Spaces
from plait.tools.tool_file import ConfigResolve, Header, ToolFile

EXECUTION_KEYS: Final = frozenset(
    {
        "command", "args", "env", "cwd", "input_data", "timeout", "max_output", "server", "tool_name",
        "server_config_path", "fixed_params", "params_key", "params_env", "function", "method", "url",
        "headers", "body", "auth", "retry", "max_redirects",
    }
)  # fmt: skip
"""Keys that say how something runs: parameters of these names reach the tool only as data."""


CONTEXT: Final = frozenset(
    {
        "tool_path", "tool_dir", "tool_parent", "params_json", "project_path", "anchor_path", "runtime_lib",
        "user_space", "system_space",
    }
)  # fmt: skip
"""Names that only the call itself sets; a caller cannot set them, even if they are unset here."""


_OUT_OF_REACH: Final = EXECUTION_KEYS | CONTEXT


class Config:
    """The merged config of a chain, filled on demand, each key once."""

    def __init__(
        self,
        chain: Chain,
        *,
        params: Mapping[str, Json],
        context: Mapping[str, Json],
        env: Mapping[str, Any],
        fixed: Mapping[str, Json] | None = None,
    ) -> None:
        """`params` come from the caller; `fixed` are parameters that the author has set."""
        self._plan = _find_plan(chain)
        self.written = self._plan.written
        self.env = env
        self.where = chain.tool.path
        leaves = {name: value for name, value in params.items() if self._plan.is_open(name)}
        decided = {
            name: value for name, value in (fixed or {}).items() if name not in _OUT_OF_REACH
        }
        self._leaves: dict[str, Json] = {**leaves, **decided, **context}
        self._of_caller = leaves.keys() - decided.keys() - context.keys()
        self._filled: dict[str, Json] = {}
        self._budget = Budget()
        self._open: list[str] = []

    def has(self, key: str) -> bool:
        return self.written.get(key) is not None

    def template(self, value: Json) -> Template:
        return self._plan.template(value)

    def value(self, key: str, default: Json = None) -> Json:
        """Fill a key of the author; map entries that are one unresolved `{name}` are removed."""
        if not self.has(key):
            return default
        written = self.written[key]
        if isinstance(written, int | float):  # this includes true and false
            return written
        if written.__class__ is str and (text := self._plan.text(written)) is not None:
            return text
        template = self.template(written)
        return render_json_value(template, self.names_for(template), env=self.env)

    def is_fixed(self, *keys: str) -> bool:
        """Do these keys have the same value in every call: absent, a number, or plain text?"""
        return all(
            written is None
            or isinstance(written, int | float)
            or self._is_text_without_placeholders(written)
            for written in map(self.written.get, keys)
        )

    def _is_text_without_placeholders(self, written: Json) -> bool:
        return isinstance(written, str) and self._plan.text(written) is not None

    @property
    def placeholder_names(self) -> frozenset[str]:
        """Every name that a `{name}` of the authors refers to."""
        return frozenset(_param_names(self.template(self.written)))

    def mentions(self, name: str) -> bool:
        """May a text of the author have a placeholder of this name?"""
        return self._plan.mentions(name)

    def in_clear(self) -> Config:
        """The same config with every secret revealed, for data that only the tool or its
        server gets.
        """
        clear = Config.__new__(Config)
        clear._plan, clear.written, clear.where = self._plan, self.written, self.where
        clear.env = {name: _in_clear(value) for name, value in self.env.items()}
        clear._leaves = {name: _in_clear(value) for name, value in self._leaves.items()}
        clear._of_caller = self._of_caller
        clear._filled, clear._open = {}, []
        clear._budget = Budget()
        return clear

    def from_caller(self, name: str) -> bool:
        """Does a `{name}` refer, also through other keys, to a value from the caller?"""
        if name in self._leaves:
            return name not in CONTEXT
        written = self.template(self.written[name]) if name in self.written else None
        return written is not None and any(
            placeholder.kind == "param" and self.from_caller(placeholder)
            for placeholder in written.placeholders
        )

    def may_be_option(self, template: Template) -> bool:
        """Does every value in it come from the author, or does the tool's schema declare it
        as an option?
        """
        return all(
            placeholder.kind == "param" and self._may_be_option(str(placeholder), set())
            for placeholder in template.placeholders
        )

    def _may_be_option(self, name: str, seen: set[str]) -> bool:
        if name in seen or name in self._plan.options or name in CONTEXT:
            return True
        seen.add(name)
        if name in self._of_caller:
            return False
        if name in self._leaves or name not in self.written:
            return True
        placeholders = self.template(self.written[name]).placeholders
        return all(
            placeholder.kind == "param" and self._may_be_option(str(placeholder), seen)
            for placeholder in placeholders
        )

    def caller_names(self, value: Json) -> frozenset[str]:
        """The names that a text leaves to the caller, directly or through other keys, with
        or without a value.
        """
        return frozenset(self._find_caller_names(value, set()))

    def _find_caller_names(self, value: Json, seen: set[str]) -> Iterator[str]:
        for name in self._plan.param_names(self.template(value)):
            if name in seen or name in CONTEXT:
                continue
            seen.add(name)
            if name in self.written and name not in self._leaves:
                yield from self._find_caller_names(self.written[name], seen)
            else:
                yield name

    def only_of_author(self, template: Template) -> bool:
        """Is all its text from the author, also through other keys, for every caller?"""
        return self._of_author(template, set())

    def _of_author(self, template: Template, seen: set[str]) -> bool:
        return all(
            placeholder.kind == "param" and self._is_of_author(str(placeholder), seen)
            for placeholder in template.placeholders
        )

    def _is_of_author(self, name: str, seen: set[str]) -> bool:
        if name in seen:  # already checked, or a cycle, which raises its own error
            return True
        seen.add(name)
        if name in CONTEXT or self._plan.may_be_given(name):
            return False
        return name not in self.written or self._of_author(self.template(self.written[name]), seen)

    def has_unresolved(self, template: Template) -> bool:
        """Does it have a `{name}` without a value?"""
        names = self.names_for(template)
        return any(
            placeholder.kind == "param" and placeholder not in names
            for placeholder in template.placeholders
        )

    def is_gone(self, template: Template) -> bool:
        """Is it a single `{name}` without a value, also through other keys?"""
        names = self.names_for(template)
        given = {
            name: value
            for name, value in names.items()
            if name in self._leaves or value is not None
        }
        return is_unresolved(template.leaf.compiled.parts, given, self.env)

    def names_for(self, template: Template) -> dict[str, Json]:
        """The values of the `{name}` placeholders of a template."""
        wanted = self._plan.param_names(template)
        return {
            name: self._leaf(name)
            for name in wanted
            if name in self._leaves or name in self.written
        }

    def _leaf(self, name: str) -> Json:
        if name in self._leaves:
            return self._leaves[name]
        if name not in self._filled:
            if name in self._open:
                circle = " → ".join([*self._open[self._open.index(name) :], name])
                raise InputError(
                    f"the config refers to itself: {circle}",
                    self.where,
                    "give one of them a plain value",
                    code="config-cycle",
                )
            self._open.append(name)
            try:
                self._filled[name] = self.value(name)
                self._budget.spend(self._filled[name], self._place(name))
            finally:
                self._open.pop()
        return self._filled[name]

    def _place(self, name: str) -> Span | str:
        written = self.written[name]
        return (
            Span(Source(self.where, written), 0, len(written))
            if isinstance(written, str)
            else self.where
        )


class _Plan:
    """The configs of a chain, merged once; each text is compiled once."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.written = merge_config(chain)
        schema = chain.tool.header.config_schema or {}
        properties = schema.get("properties")
        self._declared = frozenset(properties) if isinstance(properties, Mapping) else frozenset()
        self.options = frozenset(name for name in self._declared if _is_option(properties, name))
        """Parameters that may begin with `-`, because their schema says `x-option: true`."""
        self._nothing_else = schema.get("additionalProperties") is False
        self._compiled: dict[str, Template] = {}
        self._wanted: dict[int, list[str]] = {}
        self._texts: dict[str, str | None] = {}
        self._mentions: dict[str, bool] = {}

    def template(self, value: Json) -> Template:
        where = self.chain.tool.path
        if not isinstance(value, str):
            return compile_template(value, "config")
        known = self._compiled.get(value)
        if known is None:
            known = compile_template(value, "config", source=Source(where, value))
            if len(self._compiled) < _MOST_TEXTS:
                self._compiled[value] = known
                self._wanted[id(known)] = _param_names(known)
        return known

    def is_open(self, name: str) -> bool:
        """May a caller's parameter of this name be used as `{name}`?"""
        if name in _OUT_OF_REACH:
            return False
        return name not in self.written or name in self._declared

    def may_be_given(self, name: str) -> bool:
        """Like `is_open`, before a call: does the schema accept the parameter at all?"""
        return self.is_open(name) and (name in self._declared or not self._nothing_else)

    def mentions(self, name: str) -> bool:
        if name not in self._mentions:
            self._mentions[name] = name in repr(self.written)
        return self._mentions[name]

    def text(self, written: str) -> str | None:
        """The fixed value of a text without placeholders; None if it has placeholders."""
        if written in self._texts:
            return self._texts[written]
        template = self.template(written)
        text = (
            None
            if template.leaf.compiled.placeholder_count
            else str(render_json_value(template, {}, env={}))
        )
        if len(self._texts) < _MOST_TEXTS:
            self._texts[written] = text
        return text

    def param_names(self, template: Template) -> list[str]:
        """The names of its `{name}` placeholders."""
        known = self._wanted.get(id(template))
        return _param_names(template) if known is None else known


def _is_option(properties: Json, name: str) -> bool:
    schema = properties[name]
    return isinstance(schema, Mapping) and schema.get("x-option") is True


def _param_names(template: Template) -> list[str]:
    every = (
        placeholder
        for leaf in template.leaves()
        for placeholder in placeholders(leaf.compiled.parts)
    )
    return sorted(
        {placeholder.name for placeholder in every if isinstance(placeholder, ParamPlaceholder)}
    )


_PLANS: dict[int, _Plan] = {}
_MOST_PLANS: Final = 1000
_MOST_TEXTS: Final = 200


def _find_plan(chain: Chain) -> _Plan:
    # By identity: a cached chain is the same object, and comparing its contents takes
    # longer.
    plan = _PLANS.get(id(chain))
    if plan is None or plan.chain is not chain:
        if len(_PLANS) >= _MOST_PLANS:
            _PLANS.clear()
        plan = _PLANS[id(chain)] = _Plan(chain)
    return plan


def merge_config(chain: Chain) -> dict[str, Json]:
    merged: dict[str, Json] = {}
    for item in reversed(chain.elements):
        merged = deep_merge(merged, item.header.config)
    return merged


def deep_merge(below: Mapping[str, Json], above: Mapping[str, Json]) -> dict[str, Json]:
    """Merge maps key by key; replace all other values."""
    merged = dict(below)
    for key, value in above.items():
        standing = merged.get(key)
        if isinstance(standing, Mapping) and isinstance(value, Mapping):
            value = deep_merge(standing, value)
        merged[key] = value
    return merged


def validate_params(
    params: Mapping[str, Json], item: ToolFile, chain: Sequence[ToolFile] = ()
) -> dict[str, Json]:
    """The parameters with the schema's defaults; every violation is reported at once.

    `chain`: more files whose headers say which parameters are secret.
    """
    filled, schema = with_defaults(params, item), item.header.config_schema
    found = [] if schema is None else _violations(filled, schema, (item, *chain))
    if found:
        raise InputError.together([_problem(one, item) for one in found])
    return filled


def validate_known_params(params: Mapping[str, Json], item: ToolFile) -> None:
    """Like `validate_params`, for the parameters that are known in a dry run."""
    schema = item.header.config_schema
    found = [] if schema is None else violations(params, schema, (item,))
    problems = [_problem(one, item) for one in found]
    if problems:
        raise InputError.together(problems)


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule of a schema that the parameters break."""

    path: tuple[str | int, ...]
    """The place in the parameters; for a missing or unexpected one, the map around it."""
    what: str
    unexpected: tuple[str, ...] = ()
    """Names that the schema does not know."""
    code: str = "schema-violation"


def violations(
    params: Mapping[str, Json], schema: Mapping[str, Json], chain: Sequence[ToolFile] = ()
) -> list[Violation]:
    """The violations of a schema by parameters, as far as they are known before a run."""
    unknown = {name for name, value in params.items() if contains_unknown(value)}
    if not unknown:
        return _violations(_with_defaults(dict(params), schema), schema, chain)
    declared = schema.get("properties")
    properties = dict(declared) if isinstance(declared, Mapping) else {}
    anything: dict[str, Json] = {}
    properties |= dict.fromkeys(unknown & properties.keys(), anything)
    # Other rules of a schema may concern several parameters together.
    plain = {
        key: schema[key] for key in ("type", "required", "additionalProperties") if key in schema
    }
    filled = _with_defaults({**params, **dict.fromkeys(unknown, "")}, schema)
    return _violations(filled, {**plain, "properties": properties}, chain)


def with_defaults(params: Mapping[str, Json], item: ToolFile) -> dict[str, Json]:
    """The parameters with the schema's defaults, whatever else the schema says."""
    filled: dict[str, Json] = _with_defaults(dict(params), item.header.config_schema)
    return filled


def config_files(specs: Sequence[ConfigResolve], spaces: Spaces, where: str) -> list[ToolFile]:
    """The files that `CONFIG_RESOLVE` names, highest space first; each is read once, checked,
    then used.
    """
    paths = dict.fromkeys(spec.path for spec in specs)
    for path in paths:
        if any(part in ("", ".", "..") for part in path.split("/")):
            raise InputError(
                f"'{path}' leaves config/", where, "name a file below config/", code="outside-space"
            )
    found = (_config_file(space, path) for path in paths for space in spaces.all)
    return [file for file in found if file is not None]


def resolve_configs(specs: Sequence[ConfigResolve], files: Sequence[ToolFile]) -> Json:
    """The content that `CONFIG_RESOLVE` names: one tree, or a map by path if it names several."""
    trees = {spec.path: _resolve_spec(spec, files) for spec in specs}
    return next(iter(trees.values())) if len(specs) == 1 else trees


# ── helpers, in order of use ─────────────────────────────────────────────


def _in_clear(value: Json) -> Json:
    match value:
        case Secret():
            return value.reveal()
        case dict():
            return {key: _in_clear(item) for key, item in value.items()}
        case list():
            return [_in_clear(item) for item in value]
    return value


def _with_defaults(value: Json, schema: Json) -> Json:
    if not isinstance(schema, dict) or not isinstance(value, dict):
        return value
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return value
    filled = dict(value)
    for name, inner in properties.items():
        if name not in filled and isinstance(inner, dict) and "default" in inner:
            filled[name] = inner["default"]
        if name in filled:
            filled[name] = _with_defaults(filled[name], inner)
    return filled


def _violations(
    params: Mapping[str, Json], schema: Mapping[str, Json], chain: Sequence[ToolFile]
) -> list[Violation]:
    plain = deep_copy(params, reveal=True)  # secrets are strings to a schema
    if surely_meets(plain, schema):
        return []
    try:
        asked = validator(json.dumps(schema))
    except ValueError as error:
        return [Violation((), str(error).splitlines()[0], code="bad-schema")]
    try:
        errors = list(asked.iter_errors(plain))
    except ValueError:  # the library supports no deeper nesting
        raise too_deep_error() from None
    return [
        Violation(
            tuple(error.instance_path),
            describe_violation(error) + _value_note(params, error, chain),
            tuple(getattr(error.kind, "unexpected", ())),
        )
        for error in errors
    ]


def _value_note(params: Json, error: Any, chain: Sequence[ToolFile]) -> str:
    """The end of a message: the value with the wrong type or choice; empty for a secret."""
    name = type(error.kind).__name__.rpartition("_")[2]
    if name not in ("Type", "Enum") and name not in LIMITS:
        return ""
    path, value = list(error.instance_path), params
    for step in path:
        value = value[step]
    if any(path[0] in item.header.secrets for item in chain if path):
        return ""
    if isinstance(value, str | int):
        from plait.core.secret_names import is_secret

        if any(is_secret(str(step), str(value)) for step in path):
            return ""
    return format_given(value)


def _problem(violation: Violation, item: ToolFile) -> Problem:
    if violation.code == "bad-schema":
        what = f"the schema of '{item.id}' is not JSON Schema: {violation.what}"
        return Problem(what, item.path, code="bad-schema")
    schema = item.header.config_schema or {}
    for step in violation.path:
        inner = schema.get("properties")
        found = inner.get(step) if isinstance(inner, Mapping) else None
        schema = found if isinstance(found, Mapping) else {}
    known = schema.get("properties")
    guesses = [closest_name(name, known) for name in violation.unexpected] if known else []
    meant = f"did you mean '{guesses[0]}'? " if guesses and guesses[0] else ""
    return Problem(
        f"'{item.id}': {place_in(violation.path)}{violation.what}",
        item.path,
        f"{meant}look at 'plait tools show {item.id}' for its parameters",
        code="schema-violation",
    )


def describe_violation(error: Any) -> str:
    """The rule of a schema that a value breaks, without the value."""
    # The library's message quotes the wrong value, which may be a secret: name only the rule.
    kind = error.kind
    name = type(kind).__name__.rpartition("_")[2]
    match name:
        case "Required":
            return f"'{kind.property}' is required"
        case "AdditionalProperties":
            return f"{', '.join(repr(key) for key in kind.unexpected)} is not a parameter"
        case "Type":
            return f"must be {' or '.join(_with_article(name) for name in kind.types)}"
        case "Enum":
            return f"must be one of {kind.options}"
    if name in LIMITS:
        bound = next(getattr(kind, field) for field in _BOUNDS if hasattr(kind, field))
        rule = LIMITS[name].format(bound)
        return rule.removesuffix("s") if bound == 1 and name in _COUNTS else rule
    keyword = error.schema_path[-1] if error.schema_path else "schema"
    return f"does not meet '{keyword}' of the schema"


def _with_article(name: str) -> str:
    """The name of a JSON type, for a sentence."""
    if name == "null":
        return name
    return f"{'an' if name[0] in 'aio' else 'a'} {name}"


LIMITS: Final = {
    "Minimum": "must be at least {}",
    "Maximum": "must be at most {}",
    "ExclusiveMinimum": "must be more than {}",
    "ExclusiveMaximum": "must be less than {}",
    "MultipleOf": "must be a multiple of {}",
    "MinLength": "must have at least {} characters",
    "MaxLength": "must have at most {} characters",
    "MinItems": "must have at least {} items",
    "MaxItems": "must have at most {} items",
    "Pattern": "must match '{}'",
}
"""The rule in words, by the kind of violation."""
_COUNTS: Final = ("MinLength", "MaxLength", "MinItems", "MaxItems")
_BOUNDS: Final = ("limit", "multiple_of", "pattern")


def place_in(path: Sequence[str | int]) -> str:
    """The place in a value: `a.b[0]: `; empty for the whole value."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(
        "."
    ) + (": " if path else "")


def _config_file(space: Space, path: str) -> ToolFile | None:
    relative = f"config/{path}"
    contents = read_below(space.root, relative)
    if contents is None:
        return None
    data, stem = contents[0], os.path.splitext(relative)[0]
    return ToolFile(
        "config", stem, space, os.path.join(space.root, relative), data, sha256_hex(data), Header()
    )


def _resolve_spec(spec: ConfigResolve, files: Sequence[ToolFile]) -> Json:
    from plait.core.documents import merge, parse  # few tools ask for files of config/

    nodes = [
        parse(file.data.decode("utf-8", "surrogateescape"), file.path)
        for file in files
        if file.path == os.path.join(file.space.root, "config", spec.path)
    ]
    if not nodes:
        return {}
    tree = nodes[0].data() if spec.mode == "first_match" else merge(list(reversed(nodes))).data()
    return (
        {key: value for key, value in tree.items() if key != "extends"}
        if isinstance(tree, dict)
        else tree
    )
