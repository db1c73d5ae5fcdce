"""Views are tried by the commands that show them: with the same home and project."""

from __future__ import annotations

from cli.conftest import home, project, trusted

__all__ = ["home", "project", "trusted"]
