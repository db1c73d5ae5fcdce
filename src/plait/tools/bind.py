"""Bind a chain and parameters to a complete invocation, by the primitive that ends the chain."""

from __future__ import annotations

from collections.abc import Mapping

from plait.core.errors import InputError, Problem, ShellRefusedError, closest_name
from plait.core.hints import Final
from plait.core.values import Json, Secret, deep_copy, json_text
from plait.template.template import compile_template
from plait.tools.bind_common import LIMITS, BindRequest, config_map, read_limits
from plait.tools.chain import Chain
from plait.tools.code_params import CodeParams
from plait.tools.config import EXECUTION_KEYS, Config, merge_config
from plait.tools.environment import Environment
from plait.tools.invocation import FunctionCall, Invocation, Verified


def bind(call: BindRequest) -> Invocation:
    """Return everything that the primitive needs, with no placeholder left."""
    return Binding(call.chain, call.context, call.environment, call.project, call.cwd).bind(
        call.params
    )


class Binding:
    """A chain with its environment; it computes the parts that do not depend on parameters once."""

    def __init__(
        self,
        chain: Chain,
        context: Mapping[str, Json],
        environment: Environment,
        project: str | None,
        cwd: str,
        files_beside: Mapping[str, Verified] | None = None,
    ) -> None:
        self._chain, self._context, self._environment = chain, context, environment
        self._project, self._cwd, self._files_beside = project, cwd, files_beside or {}
        # The values of `${NAME}` in the author's config; a secret stays a secret.
        self._env = {
            name: Secret(value) if name in environment.secrets else value
            for name, value in environment.lookup.items()
        }
        author = Config(chain, params={}, context=context, env=self._env)
        _require_known_keys(author, chain.primitive)
        require_literal_code(chain)
        self._fixed = config_map(author, "fixed_params")
        self._fixed_in_clear = config_map(author.in_clear(), "fixed_params") if self._fixed else {}
        self._key = author.value("params_key")
        self._as_json = author.mentions("params_json")
        self._function: FunctionCall | None = None
        if chain.primitive == "core/primitives/function" and author.is_fixed("function", *LIMITS):
            self._function = _function(self._call({}, context), author, {})

    def in_environment(self, environment: Environment) -> Binding:
        """The same chain in another environment."""
        return Binding(
            self._chain, self._context, environment, self._project, self._cwd, self._files_beside
        )

    def bind(self, params: Mapping[str, Json]) -> Invocation:
        # The parameters as the tool receives them: fixed ones win, and `params_key` nests the
        # others.
        nested = isinstance(self._key, str) and self._key
        given = {**({self._key: dict(params)} if nested else params), **self._fixed_in_clear}
        plain = deep_copy(given, reveal=True)
        if (made := self._function) is not None:
            return FunctionCall(
                made.path,
                made.code,
                made.digest,
                made.function,
                plain,
                made.project_path,
                made.limits,
                made.file,
                made.files_beside,
            )
        context = self._context
        if self._as_json:
            context = {**context, "params_json": json_text(given, reveal=True)}
        config = Config(
            self._chain, params=params, context=context, env=self._env, fixed=self._fixed
        )
        # Fixed parameters win in every form: as JSON, as `{name}` and as a variable.
        params = {**params, **self._fixed} if self._fixed else params
        call = self._call(params, context)
        match self._chain.primitive:
            case "core/primitives/subprocess":
                from plait.tools.bind_process import bind_process

                return bind_process(call, config)
            case "core/primitives/http_client":
                from plait.tools.bind_request import bind_request

                return bind_request(call, config)
            case "core/primitives/function":
                return _function(call, config, plain)
            case "core/primitives/mcp":
                from plait.tools.bind_mcp import bind_mcp

                return bind_mcp(call, config, plain)
            case other:
                raise InputError(
                    f"there is no primitive '{other}'",
                    call.chain.tool.path,
                    code="unknown-primitive",
                )

    def _call(self, params: Mapping[str, Json], context: Mapping[str, Json]) -> BindRequest:
        return BindRequest(
            self._chain,
            params,
            context,
            self._environment,
            self._project,
            self._cwd,
            self._files_beside,
        )


def require_literal_code(chain: Chain) -> None:
    """Refuse a fixed parameter that is code, unless it consists only of its author's text."""
    code = CodeParams(chain.tool.id, (item.header.config_schema for item in chain.elements))
    written = merge_config(chain).get("fixed_params") if code else None
    places = [] if written is None else code.places(compile_template(written, "config"))
    if places:
        raise ShellRefusedError.together(
            Problem(
                f"config.fixed_params.{place.name} is {place.mark.language} code, "
                "and a value in it would become code",
                chain.tool.path,
                "write the code out without a placeholder",
                code="value-as-code",
            )
            for place in places
        )


_TAKES: Final = {
    "core/primitives/subprocess": frozenset(
        {
            "command",
            "args",
            "env",
            "cwd",
            "input_data",
            "timeout",
            "max_output",
            "fixed_params",
            "params_key",
        }
        | {"params_env"}
    ),
    "core/primitives/http_client": frozenset(
        {
            "method",
            "url",
            "headers",
            "body",
            "auth",
            "retry",
            "max_redirects",
            "timeout",
            "max_output",
        }
        | {"fixed_params", "params_key"}
    ),
}


def _require_known_keys(config: Config, primitive: str) -> None:
    """Refuse an unused key whose name is almost a known one."""
    known = _TAKES.get(primitive)
    if known is None or config.written.keys() <= EXECUTION_KEYS:
        return
    unused = config.written.keys() - EXECUTION_KEYS - config.placeholder_names
    slips = {
        key: guess
        for key in sorted(unused)
        if (guess := closest_name(key, known, cutoff=0.8)) is not None
    }
    if slips:
        raise InputError.together(
            Problem(
                f"config.{key} is used by nothing",
                config.where,
                f"did you mean '{guess}'? (a key of your own stands somewhere as {{{key}}})",
                code="bad-config",
            )
            for key, guess in slips.items()
        )


def _function(call: BindRequest, config: Config, params: Mapping[str, Json]) -> FunctionCall:
    return FunctionCall(
        path=call.chain.tool.path,
        code=call.chain.tool.data,
        digest=call.chain.tool.digest,
        function=str(config.value("function", "execute")),
        params=params,
        project_path=call.project,
        limits=read_limits(call, config),
        file=str(call.context.get("tool_path", "")),
        files_beside=call.files_beside,
    )
