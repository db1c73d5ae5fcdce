"""A call that is to be bound, and the keys of its config that primitives read in the same way."""

from __future__ import annotations

from collections.abc import Mapping

from plait.core.errors import InputError
from plait.core.hints import Final
from plait.core.records import dataclass, field
from plait.core.values import Json
from plait.tools.chain import Chain
from plait.tools.config import Config
from plait.tools.environment import Environment
from plait.tools.invocation import DEFAULT_MAX_OUTPUT, CallLimits, Verified

LIMITS: Final = ("timeout", "max_output")


@dataclass(frozen=True, slots=True)
class BindRequest:
    """A tool, its parameters, and everything around it."""

    chain: Chain
    params: Mapping[str, Json]
    context: Mapping[str, Json]
    environment: Environment
    project: str | None
    cwd: str
    """Where a process starts unless its config says otherwise."""
    files_beside: Mapping[str, Verified] = field(default_factory=dict, repr=False)
    """Files that a function may import, by their path relative to the tool's folder."""


def config_map(config: Config, key: str) -> Mapping[str, Json]:
    """A key of the config that is a map, filled."""
    value = config.value(key, {})
    if not isinstance(value, Mapping):
        raise bad_config(config, key, "a map", f"write {key}: {{name: value}}")
    return value


def read_limits(call: BindRequest, config: Config, default: float = 300.0) -> CallLimits:
    timeout = config.value("timeout", default)
    try:
        seconds = float(timeout)
    except (TypeError, ValueError):
        seconds = -1.0
    if isinstance(timeout, bool) or not 0 < seconds < float("inf"):
        raise InputError(
            "config.timeout is a number of seconds above 0",
            call.chain.tool.path,
            "write timeout: 60",
            code="bad-config",
        )
    return CallLimits(seconds, read_whole(config, "max_output", DEFAULT_MAX_OUTPUT, least=1))


def read_whole(config: Config, key: str, default: int, *, least: int) -> int:
    value = config.value(key, default)
    if not is_whole(value, least=least):
        raise bad_config(config, key, f"a whole number, {least} or more", f"write {key}: {default}")
    return int(value)


def is_whole(value: Json, *, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def bad_config(config: Config, key: str, what: str, fix: str) -> InputError:
    return InputError(f"config.{key} is {what}", config.where, fix, code="bad-config")
