"""The parameters that a flow declares, and the inputs that it gets for them.

All inputs are checked at once, before anything runs; no message holds a secret.

    parameters:
      target: {type: string, description: what to build}      required: it has no default
      count:  {type: integer, default: 3}
      mode:   {choices: [fast, slow], default: fast}
      tags:   array                                           only its type

A list of names, or of such maps with a `name`, means the same; so do two lists under
`required` and `optional`.  A text (`-i count=5`) is converted to the type: numbers and
true/false are parsed, arrays and objects are JSON.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Set

from plait import schema
from plait.core.documents import nodes
from plait.core.errors import InputError, Problem, closest_name, format_names
from plait.core.hints import Final
from plait.core.records import dataclass
from plait.core.source import Span
from plait.core.values import (
    MOST_LEVELS,
    UNDEFINED,
    Json,
    Secret,
    Undefined,
    format_given,
    is_deeper,
    json_value,
    reveal_text,
    text,
)
from plait.scope import Scope
from plait.template.operators import OPERATORS, RefusedError


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    span: Span
    type: str = "any"
    default: Json | Undefined = UNDEFINED
    required: bool = True
    description: str = ""
    choices: tuple[Json, ...] = ()
    pattern: str | None = None

    @property
    def type_description(self) -> str:
        """The type of the parameter, as a message shows it."""
        return WORDS[self.type]


WORDS: Final = {
    "string": "text",
    "number": "a number",
    "integer": "a whole number",
    "boolean": "true or false",
    "array": "a list: JSON such as [1, 2]",
    "object": 'a map: JSON such as {"a": 1}',
    "any": "any value",
}


# ── parameters ─────────────────────────────────────────────────


def flow_parameters(document: nodes.Node) -> dict[str, Parameter]:
    """The parameters of a workflow."""
    return parse_parameters(
        document.get("parameters") if isinstance(document, nodes.Mapping) else None
    )


def secret_names(document: nodes.Node) -> frozenset[str]:
    """The names below `secrets`: inputs of a graph or an ensemble, variables of a workflow."""
    match document.get("secrets") if isinstance(document, nodes.Mapping) else None:
        case nodes.Mapping() as variables:
            return frozenset(variables.data())
        case nodes.Sequence() as inputs:
            return frozenset(str(one) for one in inputs.data())
    return frozenset()


def parse_parameters(
    node: nodes.Node | None, secrets: Set[str] = frozenset()
) -> dict[str, Parameter]:
    """Parameters whose form has no problems; InputError with all contradictions in them.

    `secrets`: the names of those that are declared as secrets.
    """
    found: dict[str, Parameter] = {}
    problems: list[Problem] = []
    for parameter in _read(node):
        if parameter.name in found:
            what, fix = f"parameter '{parameter.name}' is declared twice", "remove one of them"
            problems.append(Problem(what, parameter.span, fix, code="parameter"))
        found[parameter.name] = parameter
        problems += _contradictions(parameter)
        if parameter.name in secrets and not (
            parameter.type in ("string", "any")
            and (isinstance(parameter.default, Undefined) or _can_be_secret(parameter.default))
        ):
            problems.append(_secret_problem(parameter))
    if problems:
        raise InputError.together(problems)
    return found


def _read(node: nodes.Node | None) -> Iterator[Parameter]:
    match node:
        case nodes.Sequence(items):
            yield from (_parse_list_item(item) for item in items)
        case nodes.Mapping() if isinstance(
            schema.select_kind(schema.PARAMETERS, node), schema.Record
        ):
            for group, required in (("required", True), ("optional", False)):
                for item in (
                    listed.items if isinstance(listed := node.get(group), nodes.Sequence) else ()
                ):
                    yield _parse_list_item(item, required=required)
        case nodes.Mapping(entries):
            for key, value in entries:
                yield _parse_parameter(str(key.value), key.span, value)


def _parse_list_item(item: nodes.Node, *, required: bool | None = None) -> Parameter:
    if isinstance(item, nodes.Mapping):
        name = item.get("name")
        assert name is not None
        return _parse_parameter(
            str(name.data()), name.span, item, required=required, form="named_parameter"
        )
    return Parameter(str(item.data()), item.span, required=required is not False)


def _parse_parameter(
    name: str,
    span: Span,
    value: nodes.Node,
    *,
    required: bool | None = None,
    form: str = "parameter",
) -> Parameter:
    if not isinstance(value, nodes.Mapping):
        type_name = value.data()
        return Parameter(name, span, str(type_name) if type_name else "any")
    fields = schema.Fields(form, value, Scope())
    default, choices = fields.get("default"), fields.get("choices")
    needed = fields.optional_flag("required")
    if needed is None:
        needed = default is None if required is None else required and default is None
    return Parameter(
        name,
        span,
        fields.text("type") or "any",
        UNDEFINED if default is None else default.data(),
        needed,
        fields.text("description") or "",
        tuple(choices.data()) if isinstance(choices, nodes.Sequence) else (),
        fields.text("pattern"),
    )


def _contradictions(parameter: Parameter) -> Iterator[Problem]:
    if parameter.pattern is not None:
        try:
            OPERATORS["regex"].build(parameter.pattern)
        except RefusedError as refused:
            yield refused.problem(
                parameter.span, begin=f"the pattern of parameter '{parameter.name}' is"
            )
            return
    if not isinstance(parameter.default, Undefined):
        value = convert_value(parameter, parameter.default)
        if isinstance(value, Undefined) or _unmet(parameter, value) is not None:
            what = f"the default of parameter '{parameter.name}' does not fit it"
            yield Problem(
                what, parameter.span, f"it must be {_all_wanted(parameter)}", code="parameter"
            )


def parameters_schema(parameters: Mapping[str, Parameter]) -> dict[str, Json] | None:
    """Parameters as JSON Schema; None if there are none."""
    if not parameters:
        return None
    return {
        "type": "object",
        "properties": {name: _property(one) for name, one in parameters.items()},
        "required": [name for name, one in parameters.items() if one.required],
        "additionalProperties": False,
    }


def _property(parameter: Parameter) -> dict[str, Json]:
    described: dict[str, Json] = {} if parameter.type == "any" else {"type": parameter.type}
    if parameter.description:
        described["description"] = parameter.description
    if parameter.choices:
        described["enum"] = list(parameter.choices)
    if parameter.pattern is not None:
        described["pattern"] = f"^(?:{parameter.pattern})$"
    if parameter.default is not UNDEFINED:
        described["default"] = parameter.default
    return described


# ── inputs ────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class ResolvedInputs:
    """The values of inputs, and everything that is wrong with them."""

    values: dict[str, Json]
    """A value that does not fit its parameter stays as it was given."""
    problems: Mapping[str, Problem]
    """By the name of the input."""

    def require(self) -> dict[str, Json]:
        if self.problems:
            raise InputError.together(self.problems.values())
        return self.values


def resolve_inputs(
    parameters: Mapping[str, Parameter],
    given: Mapping[str, Json],
    *,
    takes_more: bool = False,
    secrets: Set[str] | None = None,
) -> ResolvedInputs:
    """The value of each parameter that has one, converted to its type, with the defaults.

    `takes_more`: an input that is not declared is kept as it is.  `secrets`: the inputs whose
    values no message may show; None: all of them.
    """
    others = {name: value for name, value in given.items() if name not in parameters}
    values = others if takes_more else {}
    problems: dict[str, Problem] = {}
    for name, parameter in parameters.items():
        offered = given.get(name, parameter.default)
        if isinstance(offered, Undefined):
            if parameter.required:
                about = f": {parameter.description}" if parameter.description else ""
                what = f"parameter '{parameter.name}' is missing{about}"
                close = closest_name(name, others) if not takes_more else None
                also = f"; you gave '{close}'" if close else ""
                fix = f"pass it with -i {name}=…{also}"
                problems[name] = Problem(what, parameter.span, fix, code="parameter")
            continue
        value = convert_value(parameter, offered)
        unmet = (
            parameter.type_description if isinstance(value, Undefined) else _unmet(parameter, value)
        )
        if unmet is None and secrets and name in secrets and not _can_be_secret(value):
            problems[name] = _secret_problem(parameter)
        if unmet is not None:
            is_shown = secrets is not None and name not in secrets
            what = f"parameter '{name}' must be {unmet}{format_given(offered) if is_shown else ''}"
            close = _closest_choice(parameter, offered) if is_shown else None
            fix = f"did you mean '{close}'?" if close else _how_to_pass(parameter)
            if unmet is _SHALLOW:
                fix = _flatter_fix(name)
            problems[name] = Problem(what, parameter.span, fix, code="parameter")
        values[name] = offered if isinstance(value, Undefined) else value
    if not takes_more:
        problems |= {name: _unknown(name, parameters) for name in others}
    for name, value in others.items() if takes_more else ():
        if is_deeper(value, MOST_LEVELS):
            what = f"input '{name}' must be {_SHALLOW}"
            problems[name] = Problem(what, fix=_flatter_fix(name), code="parameter")
        elif secrets and name in secrets and not _can_be_secret(value):
            what = f"input '{name}' must be text, since it is a secret"
            fix = f"pass it with -i {name}=…; if it is declared, with type: string"
            problems[name] = Problem(what, fix=fix, code="parameter")
    return ResolvedInputs(values, problems)


def _flatter_fix(name: str) -> str:
    return f"pass flatter data with -i {name}=…"


def _secret_problem(parameter: Parameter) -> Problem:
    what = f"parameter '{parameter.name}' must be text, since it is a secret"
    return Problem(what, parameter.span, "declare it with type: string", code="parameter")


def _can_be_secret(value: Json) -> bool:
    """Can the value be masked? Only text can: a number would be recorded and shown."""
    return value is None or isinstance(value, str | Secret)


def seal_inputs(values: Mapping[str, Json], secrets: Set[str]) -> dict[str, Json]:
    """The values, with those of declared secrets as `Secret`."""
    return {
        name: Secret(value) if name in secrets and isinstance(value, str) else value
        for name, value in values.items()
    }


def convert_value(parameter: Parameter, value: Json) -> Json | Undefined:
    """The value as its type, text parsed; UNDEFINED if it does not fit."""
    if isinstance(value, Secret):
        return value if parameter.type in ("string", "any") else UNDEFINED
    if isinstance(value, str) and parameter.type not in ("string", "any"):
        value = _parse_json_text(value, parameter.type)
    return value if _IS[parameter.type](value) else UNDEFINED


def _parse_json_text(text: str, wanted: str) -> Json | Undefined:
    """Parse text as JSON; true and false are accepted in any case."""
    text = text.strip()
    if wanted == "boolean":
        text = text.lower()
    if wanted in ("number", "integer") and not re.fullmatch(
        r"-?[0-9]{1,300}(\.[0-9]{1,300})?([eE][-+]?[0-9]{1,3})?", text
    ):
        return UNDEFINED
    try:
        return json_value(text.lstrip("0") or "0" if text.isdecimal() else text)
    except (ValueError, RecursionError):
        return UNDEFINED


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value - value == 0


_IS: Final[dict[str, Callable[[Json], bool]]] = {
    "string": lambda value: isinstance(value, str),
    "number": _is_number,
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "any": lambda value: not isinstance(value, Undefined),
}


_SHALLOW: Final = f"nested at most {MOST_LEVELS} levels deep"


def _unmet(parameter: Parameter, value: Json) -> str | None:
    """The rule that the value breaks, as a message shows it."""
    plain = reveal_text(value) if isinstance(value, Secret) else value
    if is_deeper(plain, MOST_LEVELS):
        return _SHALLOW
    if parameter.choices and not any(_same(plain, choice) for choice in parameter.choices):
        return f"one of {_format_choices(parameter)}"
    if parameter.pattern is not None and not _matches_whole(parameter.pattern, reveal_text(plain)):
        return f"text that matches '{parameter.pattern}'"
    return None


_EXAMPLES: Final = {
    "number": "2.5",
    "integer": "2",
    "boolean": "true",
    "array": "'[1, 2]'",
    "object": """'{"a": 1}'""",
}


def _how_to_pass(parameter: Parameter) -> str:
    """The option with a value that fits, if one is known."""
    example = _EXAMPLES.get(parameter.type)
    if parameter.choices:
        example = shlex.quote(text(parameter.choices[0]))
    if example is None or parameter.pattern is not None:
        return f"pass it with -i {parameter.name}=…"
    return f"for example -i {parameter.name}={example}"


def _closest_choice(parameter: Parameter, value: Json) -> str | None:
    choices = [choice for choice in parameter.choices if isinstance(choice, str)]
    return closest_name(value, choices) if isinstance(value, str) else None


def _same(one: Json, other: Json) -> bool:
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def _matches_whole(pattern: str, text: str) -> bool:
    return OPERATORS["regex"].build(rf"\A(?:{pattern})\z")(text)


def _all_wanted(parameter: Parameter) -> str:
    parts = [parameter.type_description]
    if parameter.choices:
        parts.append(f"one of {_format_choices(parameter)}")
    if parameter.pattern is not None:
        parts.append(f"text that matches '{parameter.pattern}'")
    return ", ".join(parts)


def _format_choices(parameter: Parameter) -> str:
    return format_names(text(choice) for choice in parameter.choices)


def _unknown(name: str, parameters: Mapping[str, Parameter]) -> Problem:
    close = closest_name(name, parameters)
    fix = f"parameters: {format_names(parameters)}" if parameters else "declare it under parameters"
    return Problem(
        f"this flow has no parameter '{name}'",
        None,
        f"did you mean '{close}'?" if close else fix,
        code="parameter",
    )
