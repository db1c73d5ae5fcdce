"""Call a tool and wrap its result, or describe what a call would do.

A dry run takes the same steps and stops before the primitive.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from plait.core.errors import TrustError
from plait.core.hints import Any, Final
from plait.core.records import dataclass, replace
from plait.core.values import Json, json_text
from plait.tools.invocation import (
    FunctionCall,
    McpCall,
    PrimitiveResult,
    ProcessCall,
    RequestCall,
    display_header,
)
from plait.tools.prepare import CallPrimitive, PreparedCall, Toolbox, prepare

_MOST_STDERR: Final = 16384


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The envelope: status, item id, data, chain, metadata."""

    item_id: str
    success: bool
    data: Json
    error: str | None
    chain: tuple[Mapping[str, Json], ...]
    metadata: Mapping[str, Json]
    printed: str | None = None
    """The exact output of a process, for callers that want text."""

    def record(self) -> dict[str, Json]:
        record: dict[str, Json] = {
            "status": "success" if self.success else "error",
            "type": "tool",
            "item_id": self.item_id,
            "data": self.data,
            "chain": [dict(element) for element in self.chain],
            "metadata": dict(self.metadata),
        }
        return record if self.success else {**record, "error": self.error}


def call_tool(
    toolbox: Toolbox,
    item_id: str,
    params: Mapping[str, Json],
    *,
    in_clear: bool = False,
    perform: CallPrimitive | None = None,
) -> ToolResult:
    """Run a tool and wrap its result, to be printed, journaled or logged.

    `in_clear` returns the data as it is, for a program that asked for it; otherwise the secrets
    that the tool got are masked in it. Messages never show a secret.
    """
    prepared = prepare(toolbox, item_id, params)
    began = time.monotonic()
    try:
        returned = (perform or toolbox.perform)(prepared.invocation)
    except TrustError as refused:
        raise with_parameters(refused, prepared) from None
    return wrap_result(item_id, prepared, returned, time.monotonic() - began, in_clear=in_clear)


def wrap_result(
    item_id: str,
    prepared: PreparedCall,
    returned: PrimitiveResult,
    duration: float,
    *,
    in_clear: bool = False,
) -> ToolResult:
    """Put the result of a tool into the envelope; `in_clear` as in `call_tool`."""
    metadata: dict[str, Json] = {
        "duration_ms": round(duration * 1000, 3),
        "resolved_env_keys": list(prepared.ready.env_names),
        **{
            name: prepared.passed_secrets.mask_secrets(fact)
            for name, fact in returned.metadata.items()
        },
    }
    if returned.exit_code is not None:
        metadata["exit_code"] = returned.exit_code
    if returned.signal is not None:
        metadata["signal"] = returned.signal
    if returned.overflow is not None:
        metadata["overflow"] = returned.overflow
    if prepared.environment.refused:
        metadata["refused_env"] = list(prepared.environment.refused)
    if prepared.environment.unread:
        metadata["unread_env"] = [f".env:{line}" for line in prepared.environment.unread]
    returned = _by_own_names(returned, prepared.ready.copied)
    if not returned.success and prepared.ready.left_out:
        metadata["left_out"] = list(prepared.ready.left_out)
    if returned.stderr:
        stderr = prepared.secrets.mask_secrets(returned.stderr)
        is_long = len(stderr) > _MOST_STDERR
        metadata["stderr"] = f"…{stderr[-_MOST_STDERR:]}" if is_long else stderr
    return ToolResult(
        item_id,
        returned.success,
        returned.data if in_clear else prepared.passed_secrets.mask_secrets(returned.data),
        returned.error and prepared.secrets.mask_secrets(returned.error),
        prepared.ready.records,
        metadata,
        returned.printed if in_clear else prepared.passed_secrets.mask_secrets(returned.printed),
    )


def _by_own_names(returned: PrimitiveResult, copied: Sequence[tuple[str, str]]) -> PrimitiveResult:
    """The error output of a tool, with the names of the user's files instead of the copies that
    ran.

    The data of a tool that succeeded stays as it is; the data of a failed one describes the
    failure.
    """
    if not copied or (returned.success and not returned.stderr):
        return returned
    from urllib.parse import quote  # for stack traces of node, in which files are URLs

    pairs = [pair for copy, own in copied for pair in ((copy, own), (quote(copy), quote(own)))]

    def with_own_names(value: Any) -> Any:
        match value:
            case str():
                for copy, own in pairs:
                    value = value.replace(copy, own)
                return value
            case list():
                return [with_own_names(item) for item in value]
            case dict():
                return {key: with_own_names(item) for key, item in value.items()}
        return value

    if returned.success:
        return replace(returned, stderr=with_own_names(returned.stderr))
    return replace(
        returned,
        data=with_own_names(returned.data),
        error=with_own_names(returned.error),
        stderr=with_own_names(returned.stderr),
        printed=with_own_names(returned.printed),
        metadata=with_own_names(dict(returned.metadata)),
    )


def with_parameters(refused: TrustError, prepared: PreparedCall) -> TrustError:
    """The same error, whose command to approve an MCP tool names the parameters that select the
    server.
    """
    names = prepared.invocation.chosen_by if isinstance(prepared.invocation, McpCall) else ()
    chosen = {name: prepared.params[name] for name in names if name in prepared.params}
    if not chosen or not refused.fix:
        return refused
    from shlex import quote

    written = quote(json_text(prepared.secrets.mask_secrets(chosen)))
    return TrustError(
        refused.what, refused.where, f"{refused.fix} --params {written}", code=refused.code
    )


def plan_call(toolbox: Toolbox, item_id: str, params: Mapping[str, Json]) -> dict[str, Json]:
    """Describe what a call would do, with everything that the primitive would get."""
    prepared = prepare(toolbox, item_id, params, masked=True)
    return {
        "status": "validation_passed",
        "item_id": item_id,
        "chain": list(prepared.ready.chain.ids),
        "validated_pairs": [pair.record() for pair in prepared.ready.pairs],
        "shadows": list(prepared.shadowed),
        "trust": [decision.record() for decision in prepared.ready.decisions],
        "refused_env": list(prepared.environment.refused),
        "unread_env": [f".env:{line}" for line in prepared.environment.unread],
        **_describe_call(prepared),
    }


def _describe_call(prepared: PreparedCall) -> dict[str, Json]:
    env = {name: value.origin for name, value in sorted(prepared.environment.child.items())}
    match prepared.invocation:
        case ProcessCall() as call:
            return {
                "argv": list(call.argv),
                "cwd": call.cwd,
                "env": {**env, **{name: "config" for name in call.env if name not in env}},
                "stdin": call.stdin.decode("utf-8", "replace"),
                "limits": {"timeout": call.limits.timeout, "max_output": call.limits.max_output},
            }
        case RequestCall() as call:
            return {
                "request": {
                    "method": call.method,
                    "url": call.url,
                    "headers": {name: display_header(name, value) for name, value in call.headers},
                    "body": None if call.body is None else call.body.decode("utf-8", "replace"),
                },
                "limits": {"timeout": call.limits.timeout, "attempts": call.retry.attempts},
            }
        case FunctionCall() as call:
            return {"function": call.function, "file": call.path, "params": dict(call.params)}
        case McpCall() as call:
            server = list(call.server.command) or call.server.url
            return {"server": server, "tool": call.tool, "params": dict(call.params), "env": env}
