"""Find problems of a tool that occur for all parameters, and of a call that occur for all unknown
values.

Nothing is started, trusted or written. The config of the chain is bound to sample parameters,
because only `bind` knows what a config may contain. A problem counts only if every sample has it:
then no unknown value is its cause.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence

from plait.core.errors import PlaitError, Problem
from plait.core.hints import Final
from plait.core.json_schema import surely_meets, validator
from plait.core.values import Json, contains_unknown
from plait.tools.anchors import find_anchor, tool_folder
from plait.tools.bind import Binding
from plait.tools.chain import FLOW, Chain
from plait.tools.chain_rules import check_pairs
from plait.tools.config import CONTEXT, EXECUTION_KEYS, Config, with_defaults
from plait.tools.environment import Environment

SAMPLES: Final[tuple[Json, ...]] = ("x", 1, {}, [])
"""The samples for a parameter without a type."""
_BY_TYPE: Final[Mapping[str, Json]] = {
    "string": "x", "integer": 1, "number": 1, "boolean": True, "array": [], "object": {}, "null": None,
}  # fmt: skip
_OF_VALUES: Final = frozenset(
    {"secret-in-argv", "too-large", "bad-env", "url-origin", "unresolved"}
)
"""Codes of problems that depend on the values of parameters or variables."""


def chain_problems(chain: Chain, project: str | None) -> list[Problem]:
    """All problems that the files of a chain have."""
    found = [problem for pair in check_pairs(chain) for problem in pair.problems]
    for item in chain.elements:
        schema = item.header.config_schema
        problem = None if schema is None else schema_problem(schema, item.id, item.path)
        if problem is not None:
            found.append(problem)
    if chain.primitive != FLOW:
        found += _config_problems(chain, project)
        try:
            tool_folder(chain, find_anchor(chain, project))
        except PlaitError as error:  # the folder cannot be copied with the tool
            found += error.problems
    return found


def call_problems(chain: Chain, project: str | None, params: Mapping[str, Json]) -> list[Problem]:
    """The problems of binding these parameters, some of which may be unknown."""
    if chain.primitive == FLOW:
        return []
    properties = _parameter_schemas(chain)
    tool = chain.tool

    def sample_params(sample: Json) -> dict[str, Json]:
        known = {
            name: _sample_value(properties.get(name), sample) if contains_unknown(value) else value
            for name, value in params.items()
        }
        return with_defaults(known, tool)

    of_tool = {problem.what for problem in _config_problems(chain, project)}
    shortest = {name: "" if contains_unknown(value) else value for name, value in params.items()}
    found = _common(
        chain, project, [sample_params(sample) for sample in SAMPLES], with_defaults(shortest, tool)
    )
    return [problem for problem in found if problem.what not in of_tool]


def schema_problem(schema: Mapping[str, Json], tool_id: str, path: str) -> Problem | None:
    """Why a schema is not valid JSON Schema; None if it is."""
    if surely_meets({}, schema):
        return None
    try:
        validator(json.dumps(schema))
    except ValueError as error:
        first = str(error).splitlines()[0]
        what = f"the schema of '{tool_id}' is not JSON Schema: {first}"
        return Problem(
            what, path, "every keyword has its form: type: object, required: [a]", code="bad-schema"
        )
    return None


def _config_problems(chain: Chain, project: str | None) -> list[Problem]:
    """The problems that the binding has with every sample."""
    with_each = [_params(chain, sample) for sample in SAMPLES]
    return _common(chain, project, with_each, dict.fromkeys(with_each[0], ""))


def _common(
    chain: Chain,
    project: str | None,
    with_each: Sequence[Mapping[str, Json]],
    shortest: Mapping[str, Json],
) -> list[Problem]:
    """The problems with all of these parameters; "too long" counts if the shortest parameters
    have it too.
    """
    bound = [_binding_problems(chain, project, params) for params in with_each]
    found = [problem for what, problem in bound[0].items() if all(what in one for one in bound)]
    if not any(problem.code == "output-too-long" for problem in found):
        return found
    least = _binding_problems(chain, project, shortest, variable="")
    return [one for one in found if one.code != "output-too-long" or one.what in least]


def _binding_problems(
    chain: Chain, project: str | None, params: Mapping[str, Json], *, variable: str = "http://x"
) -> dict[str, Problem]:
    context = _context(chain, project)
    folder = os.path.dirname(chain.tool.path)
    try:
        author = Config(chain, params={}, context=context, env={})
        # Each variable that the config names could have a value when the tool is called.
        named = author.template(author.written).placeholders
        variables = [str(placeholder) for placeholder in named if placeholder.kind == "env"]
        environment = Environment({}, dict.fromkeys(variables, variable))
        Binding(chain, context, environment, project, project or folder).bind(params)
    except PlaitError as error:
        return {one.what: one for one in error.problems if one.code not in _OF_VALUES}
    return {}


def _context(chain: Chain, project: str | None) -> dict[str, Json]:
    folder = os.path.dirname(chain.tool.path)
    return {
        "tool_path": chain.tool.path,
        "tool_dir": folder,
        "tool_parent": os.path.dirname(folder),
        "project_path": project or folder,
        "anchor_path": folder,
        "runtime_lib": folder,
        "user_space": folder,
        "system_space": folder,
    }


def _parameter_schemas(chain: Chain) -> Mapping[str, Json]:
    schema = chain.tool.header.config_schema or {}
    properties = schema.get("properties")
    return properties if isinstance(properties, Mapping) else {}


def _params(chain: Chain, sample: Json) -> dict[str, Json]:
    """A value for every parameter that is declared, or that the config uses."""
    declared = _parameter_schemas(chain)
    author = Config(chain, params={}, context=_context(chain, None), env={})
    names = [
        *declared,
        *sorted(author.placeholder_names - declared.keys() - CONTEXT - EXECUTION_KEYS),
    ]
    return {name: _sample_value(declared.get(name), sample) for name in names}


def _sample_value(schema: Json, sample: Json) -> Json:
    if not isinstance(schema, Mapping):
        return sample
    for keyword in ("default", "const"):
        if keyword in schema:
            return schema[keyword]
    choices = schema.get("enum")
    if isinstance(choices, list) and choices:
        return choices[0]
    kind = schema.get("type")
    return _BY_TYPE.get(kind, sample) if isinstance(kind, str) else sample
