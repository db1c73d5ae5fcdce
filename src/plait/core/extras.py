"""How to install an extra: packages that only some features need."""

from __future__ import annotations


def install_extra(name: str) -> str:
    """Return the command, as advice in a message. It is run in a clone, since Plait is not
    published.
    """
    return f"in the clone of Plait: uv tool install '.[{name}]', or pip install '.[{name}]'"
