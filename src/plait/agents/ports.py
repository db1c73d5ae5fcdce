"""The ports of agents: models and the catalog of tools."""

from __future__ import annotations

from plait.core.hints import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plait.agents.messages import Provider, ToolOffer


class Models(Protocol):
    """The language models of a run."""

    def provider(self, name: str | None) -> Provider | None:
        """Return the provider with a name, or the default one; None: there is none."""


class ToolCatalog(Protocol):
    """The tools that a session may offer to a model."""

    def offers(self, patterns: Sequence[str], *, ask_servers: bool = True) -> tuple[ToolOffer, ...]:
        """Return offers for the tools that match a pattern and may run, sorted by id.

        A pattern without `*` names a tool that must exist; TrustError if it may not run.  Without
        `ask_servers` no MCP server is started: its tools are described by their files only.
        """
