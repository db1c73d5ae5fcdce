"""Names and their values: frames with seven levels, and the computed sources behind them."""

from plait.scope.computed import CacheStats, Sources
from plait.scope.frames import LEVELS, Frame, Origin, Scope

__all__ = ["LEVELS", "CacheStats", "Frame", "Origin", "Scope", "Sources"]
