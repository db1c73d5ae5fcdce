"""Load a flow file in a test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plait.lang.flow_text import FlowText
from plait.lang.load import load_flow
from plait.lang.loaded import LoadedFlow, LoadOptions


def load_file(path: str, inputs: Mapping[str, Any] | None = None, **options: Any) -> LoadedFlow:
    """The flow in a file; `options` are those of `LoadOptions`."""
    return load_flow(FlowText.read(path), inputs, LoadOptions(**options))
