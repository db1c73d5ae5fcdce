"""How to install an extra: what only some features need."""

from __future__ import annotations


def install_extra(name: str) -> str:
    """The command, as the advice of a message.  It is given in a clone, since Plait is not published."""
    return f"in the clone of Plait: uv tool install '.[{name}]', or pip install '.[{name}]'"
