"""Directives as prompts: a client gets the text of a directive with its inputs filled in."""

from __future__ import annotations

from collections.abc import Mapping

from plait.agents.permissions import DIRECTIVE
from plait.core.errors import PlaitError
from plait.core.values import Json
from plait.mcp.catalog import Catalog, Exposed
from plait.mcp.protocol import INVALID_PARAMS, ProtocolError, Request


def list_prompts(catalog: Catalog) -> list[Json]:
    return [_prompt(one) for one in _directives(catalog)]


def get_prompt(catalog: Catalog, request: Request) -> dict[str, Json]:
    """The filled prompt; ProtocolError: there is none of this name, or its inputs are wrong."""
    from plait.app import runs as flows

    name, inputs = request.text("name"), request.mapping("arguments")
    found = next((one for one in _directives(catalog) if one.name == name), None)
    if found is None:
        raise ProtocolError(INVALID_PARAMS, f"Unknown prompt: {name[:200]}")
    required = found.offer.schema.get("required")
    missing = [one for one in required if one not in inputs] if isinstance(required, list) else []
    if missing:
        raise ProtocolError(INVALID_PARAMS, f"{name}: missing arguments: {', '.join(missing)}")
    try:
        filled = flows.directive_prompt(found.id, flows.Options(inputs), project=catalog.project)
    except PlaitError as error:
        raise ProtocolError(INVALID_PARAMS, str(error)) from None
    message: Json = {"role": "user", "content": {"type": "text", "text": filled.body}}
    return {"description": found.offer.description, "messages": [message]}


def _directives(catalog: Catalog) -> list[Exposed]:
    return [one for one in catalog.entries() if one.id.startswith(DIRECTIVE)]


def _prompt(one: Exposed) -> Json:
    properties = one.offer.schema.get("properties")
    required = one.offer.schema.get("required") or ()
    arguments: list[Json] = []
    for name, schema in properties.items() if isinstance(properties, Mapping) else ():
        about = schema.get("description") if isinstance(schema, Mapping) else None
        arguments.append(
            {
                "name": name,
                **({"description": about} if isinstance(about, str) else {}),
                "required": name in required,
            }
        )
    return {
        "name": one.name,
        "title": one.id,
        "description": one.offer.description,
        "arguments": arguments,
    }
