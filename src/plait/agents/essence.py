"""What makes a question to a model the same in every life of a run: see decision 35."""

from __future__ import annotations

import json
from collections.abc import Mapping

from plait.agents.messages import Provider
from plait.core.digests import sha256_hex
from plait.core.values import Json


def provider_key(provider: str | Provider | None) -> Json:
    """What tells one provider from another, in a fingerprint."""
    return provider if isinstance(provider, str | None) else [provider.name, provider.fingerprint]


def beside_room(options: Mapping[str, Json]) -> Json:
    """What of the options an answer depends on; its room is a limit: a run may go on with more of it."""
    return {name: value for name, value in options.items() if name != "max_tokens"}


def digest(data: Json) -> str:
    return sha256_hex(json.dumps(data, sort_keys=True, default=str).encode())[:16]
