"""From a chain and parameters to a complete invocation, by the primitive that ends the chain."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from plait.errors import InputError, ValueRefusedError
from plait.template import sinks
from plait.template.program import Placed
from plait.template.template import Template
from plait.tools.chain import Chain
from plait.tools.config import Config
from plait.tools.environment import Environment
from plait.tools.invocation import (
    FunctionCall,
    Invocation,
    Limits,
    McpCall,
    McpServer,
    ProcessCall,
    RequestCall,
    Retry,
)
from plait.values import Json, Secret, json_text, revealed_text


@dataclass(frozen=True, slots=True)
class Call:
    """A tool, its parameters, and everything around it."""

    chain: Chain
    params: Mapping[str, Json]
    context: Mapping[str, Json]
    environment: Environment
    project: str | None
    cwd: str
    """Where a process starts unless its config says otherwise."""
    code: bytes = field(repr=False, default=b"")


def bind(call: Call) -> Invocation:
    """Everything the primitive needs, with no hole left."""
    config = Config(
        call.chain,
        params=call.params,
        context={**call.context, "params_json": params_json(call)},
        env=_lookup(call.environment),
    )
    match call.chain.primitive:
        case "core/primitives/subprocess":
            return _process(call, config)
        case "core/primitives/http_client":
            return _request(call, config)
        case "core/primitives/function":
            return _function(call, config)
        case "core/primitives/mcp":
            return _mcp(call, config)
        case other:
            raise InputError(f"there is no primitive '{other}'", call.chain.tool.path, code="unknown-primitive")


def params_json(call: Call) -> str:
    """The caller's parameters as the tool receives them; fixed ones win, `params_key` nests the rest."""
    written = Config(call.chain, params={}, context=call.context, env=_lookup(call.environment))
    fixed = written.value("fixed_params", {})
    key = written.value("params_key")
    params: Mapping[str, Json] = {key: dict(call.params)} if isinstance(key, str) and key else call.params
    return json_text({**params, **(fixed if isinstance(fixed, Mapping) else {})}, reveal=True)


def _lookup(environment: Environment) -> dict[str, Any]:
    """`${NAME}` of the author's config; what is secret stays one."""
    secret = {name for name, value in environment.child.items() if value.secret}
    return {name: Secret(value) if name in secret else value for name, value in environment.lookup.items()}


# ── a process ────────────────────────────────────────────────────────────


def _process(call: Call, config: Config) -> ProcessCall:
    command = config.written.get("command")
    if not isinstance(command, str) or not command:
        raise InputError(
            f"the chain of '{call.chain.tool.id}' names no command",
            call.chain.tool.path,
            "set config.command in the tool or its runtime",
            code="no-command",
        )
    args = config.written.get("args") or []
    if not isinstance(args, Sequence) or isinstance(args, str):
        raise InputError("config.args is a list", call.chain.tool.path, "write args: [a, b]", code="bad-config")
    words = [*_command_words(command, has_args=bool(args)), *args]
    argv = [word for template in words for word in _words(template, config)]
    return ProcessCall(
        argv=tuple(argv),
        cwd=_directory(call, config),
        env=_child_environment(call, config),
        stdin=_stdin(config),
        limits=_limits(call, config),
    )


def _command_words(command: str, *, has_args: bool) -> list[str]:
    """`command: "echo ${X}"` without args is words of the author; a hole is never split."""
    if has_args or " " not in command or any(" " in hole for hole in _hole_texts(command)):
        return [command]
    return shlex.split(command)


def _hole_texts(command: str) -> list[str]:
    from plait.template.template import compile_template

    return [hole.text for hole in compile_template(command, "config").placeholders]


def _words(written: Json, config: Config) -> list[str]:
    if not isinstance(written, str):
        return [revealed_text(written)]
    template = config.template(written)
    names = config.names_for(template)
    pieces = template.pieces(names, env=config.env)
    if any(isinstance(piece, Placed) and isinstance(piece.value, Secret) for piece in pieces):
        raise ValueRefusedError(
            f"the argument '{written}' would show a secret to every process of this machine",
            config.where,
            "hand it over in env_config.env or in input_data",
            code="secret-in-argv",
        )
    match pieces:
        case [Placed(list() as items)]:
            return [revealed_text(item) for item in items]
    return sinks.as_words(template, names, env=config.env)


def _child_environment(call: Call, config: Config) -> dict[str, str]:
    given = config.value("env", {})
    own = given if isinstance(given, Mapping) else {}
    child = {
        **_params_as_variables(call, config),
        **call.environment.plain,
        **{name: revealed_text(value) for name, value in own.items()},
    }
    for name, value in child.items():
        if "\0" in value or "\0" in name or "=" in name or not name:
            raise ValueRefusedError(
                f"the environment variable '{name}' cannot be passed", config.where, "remove NUL from it", code="bad-env"
            )
    return child


def _params_as_variables(call: Call, config: Config) -> dict[str, str]:
    """For languages in which reading JSON is a chore: plain parameters as PREFIX_NAME."""
    prefix = config.value("params_env")
    if not isinstance(prefix, str) or not prefix:
        return {}
    plain = {name: value for name, value in call.params.items() if not isinstance(value, Mapping | list)}
    return {
        prefix + name.upper(): revealed_text(value)
        for name, value in plain.items()
        if name.isidentifier() and name.isascii()
    }


def _stdin(config: Config) -> bytes:
    if not config.has("input_data"):
        return b""
    value = config.value("input_data")
    text = value if isinstance(value, str) else json_text(value, reveal=True)
    return text.encode("utf-8", "surrogateescape")


def _directory(call: Call, config: Config) -> str:
    given = config.value("cwd")
    directory = given if isinstance(given, str) and given and "{" not in given else call.cwd
    return os.path.join(call.cwd, directory)


def _limits(call: Call, config: Config, default: float = 300.0) -> Limits:
    timeout = config.value("timeout", default)
    try:
        seconds = float(timeout)
    except (TypeError, ValueError):
        seconds = -1.0
    if isinstance(timeout, bool) or not 0 < seconds < float("inf"):
        raise InputError("config.timeout is a number of seconds above 0", call.chain.tool.path, "write timeout: 60", code="bad-config")
    most = config.value("max_output", Limits().max_output)
    return Limits(seconds, most if isinstance(most, int) and most > 0 else Limits().max_output)


# ── a request ────────────────────────────────────────────────────────────


def _request(call: Call, config: Config) -> RequestCall:
    url = config.template(config.written.get("url") or "")
    if not config.written.get("url"):
        raise InputError("an HTTP tool names a url", call.chain.tool.path, "set config.url", code="no-url")
    headers = _headers(config)
    body, content_type = _body(config)
    if content_type and not any(name.lower() == "content-type" for name, _ in headers):
        headers.append(("content-type", content_type))
    from_data = any(hole.kind == "param" for hole in _origin_holes(url))
    return RequestCall(
        method=str(config.value("method", "GET")).upper(),
        url=sinks.as_url(url, config.names_for(url), strict=True, env=config.env, host_from_value=True),
        headers=tuple(headers),
        body=body,
        limits=_limits(call, config, 60.0),
        retry=_retry(call, config),
        max_redirects=int(config.value("max_redirects", 0)),
        url_from_data=from_data,
    )


def _origin_holes(url: Template) -> list[Any]:
    text = url.leaf.source.text
    path = text.find("/", text.find("://") + 3) if "://" in text else -1
    return [hole for hole in url.placeholders if path < 0 or text.find(hole.text) < path]


def _headers(config: Config) -> list[tuple[str, str]]:
    written = config.written.get("headers") or {}
    headers = [(name, _header(value, config)) for name, value in written.items()]
    auth = config.written.get("auth")
    if isinstance(auth, Mapping):
        key = _header(auth.get("token", auth.get("key", "")), config)
        if key:
            bearer = auth.get("type", "bearer") == "bearer"
            headers.append((str(auth.get("header") or "Authorization"), f"Bearer {key}" if bearer else key))
    return headers


def _header(value: Json, config: Config) -> str:
    template = config.template(value if isinstance(value, str) else revealed_text(value))
    return sinks.as_header(template, config.names_for(template), env=config.env)


def _body(config: Config) -> tuple[bytes | None, str | None]:
    if not config.has("body"):
        return None, None
    value = config.value("body")
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape"), None
    return json_text(value, reveal=True).encode(), "application/json"


def _retry(call: Call, config: Config) -> Retry:
    given = config.value("retry")
    if given is None:
        return Retry()
    if not isinstance(given, Mapping):
        raise InputError("config.retry is a map", call.chain.tool.path, "write retry: {attempts: 3}", code="bad-config")
    standard = Retry()
    return Retry(
        attempts=int(given.get("attempts", given.get("max_attempts", standard.attempts))),
        backoff=given.get("backoff", standard.backoff),
        initial_delay=float(given.get("initial_delay", standard.initial_delay)),
        max_delay=float(given.get("max_delay", standard.max_delay)),
    )


# ── a function, an MCP tool ──────────────────────────────────────────────


def _function(call: Call, config: Config) -> FunctionCall:
    import json

    return FunctionCall(
        path=call.chain.tool.path,
        code=call.chain.tool.data,
        digest=call.chain.tool.digest,
        function=str(config.value("function", "execute")),
        params=json.loads(params_json(call)),
        project_path=call.project,
        limits=_limits(call, config),
    )


def _mcp(call: Call, config: Config) -> McpCall:
    import json

    server = config.value("server")
    tool = config.value("tool_name")
    if not isinstance(server, Mapping) or not isinstance(tool, str):
        raise InputError(
            f"'{call.chain.tool.id}' names no MCP server and tool",
            call.chain.tool.path,
            "set config.server {command, args} or {url}, and config.tool_name",
            code="bad-config",
        )
    command = (str(server["command"]), *map(str, server.get("args", ()))) if server.get("command") else ()
    env = server.get("env") or {}
    return McpCall(
        McpServer(
            name=str(server.get("name") or call.chain.tool.id),
            command=command,
            env={**call.environment.plain, **{name: revealed_text(value) for name, value in env.items()}},
            cwd=call.cwd,
            url=str(server.get("url") or ""),
            headers=tuple((name, revealed_text(value)) for name, value in (server.get("headers") or {}).items()),
        ),
        tool,
        json.loads(params_json(call)),
        _limits(call, config, 60.0),
    )
