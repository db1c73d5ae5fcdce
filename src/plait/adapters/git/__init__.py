"""Folders in which the items of a map work apart from each other: git worktrees, or copies of files.

A worktree stands below the folder of its run and has a branch of its own; both are named by us.  What
is in it is never dropped: it is merged, or its branch and folder stay.
"""

from __future__ import annotations

from plait.adapters.git.leftovers import Left, clean, left_behind
from plait.adapters.git.worktrees import Worktrees

__all__ = ["Left", "Worktrees", "clean", "left_behind"]
