"""Variables and their values: frames with seven levels, then computed values."""

from plait.scope.computed import CacheStats, Sources
from plait.scope.frames import LEVELS, Frame, Origin, Scope

__all__ = ["LEVELS", "CacheStats", "Frame", "Origin", "Scope", "Sources"]
