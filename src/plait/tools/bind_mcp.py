"""Bind a call to a tool of an MCP server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from plait.core.errors import InputError
from plait.core.values import Json, reveal_text, text
from plait.tools.bind_common import BindRequest, bad_config, config_map, read_limits
from plait.tools.bind_process import begins_with_value, require_no_options, secret_argument
from plait.tools.bind_request import origin_placeholders
from plait.tools.config import Config
from plait.tools.invocation import McpCall, McpServer


def bind_mcp(call: BindRequest, config: Config, params: Mapping[str, Json]) -> McpCall:
    clear = config.in_clear()
    server, shown = clear.value("server"), config.value("server")
    tool = clear.value("tool_name")
    if not isinstance(server, Mapping) or not isinstance(tool, str):
        raise InputError(
            f"'{call.chain.tool.id}' names no MCP server and tool",
            call.chain.tool.path,
            "set config.server {command, args} or {url}, and config.tool_name",
            code="bad-config",
        )
    if _server_command(server, config) != _server_command(shown, config):
        raise secret_argument("config.server.args", config)
    _require_no_server_options(_server_command(server, config), config, clear)
    env, headers = server.get("env") or {}, server.get("headers") or {}
    if not isinstance(env, Mapping) or not isinstance(headers, Mapping):
        raise bad_config(
            config, "server", "given env and headers as maps", "write env: {NAME: value}"
        )
    return McpCall(
        McpServer(
            name=str(server.get("name") or call.chain.tool.id),
            command=_server_command(server, config),
            env={
                **call.environment.plain,
                **{name: reveal_text(value) for name, value in env.items()},
            },
            cwd=call.cwd,
            url=str(server.get("url") or ""),
            headers=tuple((name, reveal_text(value)) for name, value in headers.items()),
            url_from_data=_server_url_from_data(config),
        ),
        tool,
        params,
        read_limits(call, config, 60.0),
        _server_chosen_by(config),
    )


def _require_no_server_options(argv: Sequence[str], config: Config, clear: Config) -> None:
    written = config.written.get("server")
    args = written.get("args") if isinstance(written, Mapping) else None
    if not isinstance(args, list) or len(args) + 1 != len(argv):
        return  # the arguments as a whole come from a placeholder
    begun = {
        at: one
        for at, one in enumerate(args, start=1)
        if isinstance(one, str) and begins_with_value(config.template(one), config, clear)
    }
    require_no_options(argv, begun, config)


def _server_chosen_by(config: Config) -> tuple[str, ...]:
    written = config.written.get("server")
    if isinstance(written, Mapping):
        written = [written.get(key) for key in ("command", "args", "url")]
    return tuple(sorted(config.caller_names(written) - config_map(config, "fixed_params").keys()))


def _server_url_from_data(config: Config) -> bool:
    written = config.written.get("server")
    url = written.get("url") if isinstance(written, Mapping) else None
    if not isinstance(url, str):
        return not isinstance(written, Mapping)  # the server as a whole comes from a placeholder
    placeholders = origin_placeholders(config.template(url))
    return any(
        placeholder.kind == "param" and config.from_caller(placeholder)
        for placeholder in placeholders
    )


def _server_command(server: Mapping[str, Json], config: Config) -> tuple[str, ...]:
    command, args = server.get("command"), server.get("args") or []
    if not command:
        return ()
    if not isinstance(args, list):
        raise bad_config(config, "server.args", "a list", "write args: [a, b]")
    return (text(command), *map(text, args))
