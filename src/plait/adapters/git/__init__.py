"""Private folders for the items of a map: git worktrees, or copies of files.

A worktree is below the folder of its run and has a branch; Plait names both. Its content is never
dropped: it is merged, or its branch and folder stay.
"""

from __future__ import annotations

from plait.adapters.git.leftovers import Leftover, clean_leftover, find_leftovers
from plait.adapters.git.worktrees import GitWorktrees

__all__ = ["GitWorktrees", "Leftover", "clean_leftover", "find_leftovers"]
