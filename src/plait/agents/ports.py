"""What agents need of the world outside."""

from __future__ import annotations

from plait.core.hints import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plait.agents.messages import Provider, ToolOffer


class Models(Protocol):
    """The language models that a run may ask."""

    def provider(self, name: str | None) -> Provider | None:
        """The provider of that name, or the default one; None if there is none."""


class ToolCatalog(Protocol):
    """The tools that a model may be offered."""

    def offers(self, patterns: Sequence[str], *, ask_servers: bool = True) -> tuple[ToolOffer, ...]:
        """The tools whose ids match a pattern and that may run, as a model sees them, by id.

        A pattern without `*` names a tool that has to exist; a TrustError if one may not run.
        Without `ask_servers` nothing is started: a tool of an MCP server is known by its file only.
        """
