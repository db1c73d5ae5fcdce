"""Bind a call to an HTTP request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from plait.core.errors import InputError, closest_name
from plait.core.hints import Final
from plait.core.records import field_names, replace
from plait.core.values import Json, json_text, reveal_text
from plait.template import sinks
from plait.template.compiled import Budget
from plait.template.template import PlaceholderName, Template
from plait.tools.bind_common import (
    BindRequest,
    bad_config,
    config_map,
    is_whole,
    read_limits,
    read_whole,
)
from plait.tools.config import Config
from plait.tools.invocation import HttpRetry, RequestCall

_AUTH: Final = {
    # headers that authenticate the sender, and the keys that each takes
    "bearer": ("token", "key"),
    "api_key": ("key", "token", "header"),
    "header": ("key", "token", "header"),
    "basic": ("username", "password"),
}


def bind_request(call: BindRequest, config: Config) -> RequestCall:
    url = config.template(config.written.get("url") or "")
    if not config.written.get("url"):
        raise InputError(
            "an HTTP tool names a url", call.chain.tool.path, "set config.url", code="no-url"
        )
    clear = config.in_clear()
    headers = _headers(clear)
    body, content_type = _body(clear)
    if content_type and not any(name.lower() == "content-type" for name, _ in headers):
        headers.append(("content-type", content_type))
    return RequestCall(
        method=str(config.value("method", "GET")).upper(),
        url=sinks.render_url(
            url, clear.names_for(url), strict=True, env=clear.env, host_from_value=True
        ),
        headers=tuple(headers),
        body=body,
        limits=read_limits(call, config, 60.0),
        retry=_retry(config),
        max_redirects=read_whole(config, "max_redirects", 0, least=0),
        url_from_data=any(
            placeholder.kind == "param" and config.from_caller(placeholder)
            for placeholder in origin_placeholders(url)
        ),
    )


def origin_placeholders(url: Template) -> list[PlaceholderName]:
    """The placeholders that decide to which host a request goes."""
    written, placeholders = url.leaf.source.text, list(url.placeholders)
    starts_with_placeholder = bool(placeholders) and written.startswith(placeholders[0].text)
    start = len(placeholders[0].text) if starts_with_placeholder else written.find("://") + 3
    ends = [place for place in (written.find(char, start) for char in "/?#") if place >= 0]
    return [
        placeholder
        for placeholder in placeholders
        if not ends or written.find(placeholder.text) < min(ends)
    ]


def _headers(config: Config) -> list[tuple[str, str]]:
    written = config.written.get("headers") or {}
    if not isinstance(written, Mapping):
        raise bad_config(config, "headers", "a map", "write headers: {Accept: text/plain}")
    headers: list[tuple[str, str]] = []
    budget = Budget()
    for name, value in written.items():
        if not (isinstance(value, str) and config.is_gone(config.template(value))):
            headers.append((name, _header(value, config)))
            budget.spend(headers[-1][1], config.where)
    if (auth := config.written.get("auth")) is not None:
        headers.append(_authorisation(auth, config))
    return headers


def _authorisation(auth: Json, config: Config) -> tuple[str, str]:
    """The authorization header. An empty value is an error, not an anonymous request."""
    if isinstance(auth, str):
        return "Authorization", _credential(auth, "auth", config)
    kind = auth.get("type", "bearer") if isinstance(auth, Mapping) else None
    if not isinstance(auth, Mapping) or kind not in _AUTH:
        guess = closest_name(str(kind), _AUTH)
        fix = f"did you mean type: {guess}?" if guess else "write {type: bearer, token: …}"
        raise bad_config(config, "auth", f"text, or a map whose type is {', '.join(_AUTH)}", fix)
    known = ("type", "header", *_AUTH[kind])
    for key in auth.keys() - set(known):
        raise bad_config(config, "auth", f"not set by '{key}'", _suggest_key(key, known))
    if kind == "basic":
        from base64 import b64encode

        user, password = (_credential(auth.get(key), f"auth.{key}", config) for key in _AUTH[kind])
        pair = f"{user}:{password}".encode("utf-8", "surrogateescape")
        return "Authorization", f"Basic {b64encode(pair).decode('ascii')}"
    key = next((name for name in _AUTH[kind][:2] if name in auth), _AUTH[kind][0])
    value = _credential(auth.get(key), f"auth.{key}", config)
    return str(
        auth.get("header") or "Authorization"
    ), f"Bearer {value}" if kind == "bearer" else value


def _credential(written: Json, key: str, config: Config) -> str:
    template = config.template(written) if isinstance(written, str) else None
    missing = template is None or config.has_unresolved(template)
    if missing or not (value := _header(written, config)).strip():
        fix = "give a value to what it names, or remove config.auth to send the request without"
        raise bad_config(config, key, "nothing: the request would go out without it", fix)
    return value


def _suggest_key(key: str, known: Sequence[str]) -> str:
    guess = closest_name(key, known)
    return f"did you mean '{guess}'?" if guess else f"known: {', '.join(known)}"


def _header(value: Json, config: Config) -> str:
    template = config.template(value if isinstance(value, str) else reveal_text(value))
    return sinks.render_header(template, config.names_for(template), env=config.env)


def _body(config: Config) -> tuple[bytes | None, str | None]:
    if not config.has("body"):
        return None, None
    value = config.value("body")
    if value is None:  # one `{name}` without a value
        return None, None
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape"), None
    return json_text(value).encode(), "application/json"


def _retry(config: Config) -> HttpRetry:
    given = {
        ("attempts" if key == "max_attempts" else key): value
        for key, value in config_map(config, "retry").items()
    }
    known = field_names(HttpRetry)
    for key in given.keys() - set(known):
        raise bad_config(config, "retry", f"not set by '{key}'", _suggest_key(key, known))
    retry = replace(HttpRetry(), **given)
    if not is_whole(retry.attempts, least=1):
        raise bad_config(config, "retry.attempts", "a whole number, 1 or more", "write attempts: 3")
    if retry.backoff not in ("fixed", "linear", "exponential"):
        raise bad_config(
            config, "retry.backoff", "fixed, linear or exponential", "write backoff: linear"
        )
    if not all(_is_delay(delay) for delay in (retry.initial_delay, retry.max_delay)):
        raise bad_config(config, "retry", "given its delays in seconds", "write initial_delay: 0.5")
    statuses: Json = retry.statuses
    if not isinstance(statuses, list | tuple) or not all(
        is_whole(status, least=100) for status in statuses
    ):
        raise bad_config(
            config, "retry.statuses", "a list of status codes", "write statuses: [429, 503]"
        )
    if not isinstance(retry.any_method, bool):
        raise bad_config(config, "retry.any_method", "true or false", "write any_method: true")
    return replace(retry, statuses=tuple(statuses))


def _is_delay(value: Json) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")
    )
