"""Every wire format, by the name that `family` of a provider file has.

A new one also needs its name in `FAMILY_NAMES` of `schema/provider_tables.py`.
"""

from __future__ import annotations

from plait.agents.providers.wire_formats.anthropic_messages import AnthropicMessages
from plait.agents.providers.wire_formats.chat_completions import ChatCompletions
from plait.core.hints import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plait.agents.providers.wire_formats import WireFormat
    from plait.core.hints import Final

WIRE_FORMATS: Final[Mapping[str, WireFormat]] = {
    "chat_completions": ChatCompletions(),
    "anthropic_messages": AnthropicMessages(),
}
