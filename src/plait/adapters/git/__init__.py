"""Folders in which the items of a map work apart from each other: git worktrees, or copies of
files.

A worktree stands below the folder of its run and has a branch of its own; both are named by us.
What is in it is never dropped: it is merged, or its branch and folder stay.
"""

from __future__ import annotations

from plait.adapters.git.leftovers import Leftover, clean_leftover, find_leftovers
from plait.adapters.git.worktrees import GitWorktrees

__all__ = ["GitWorktrees", "Leftover", "clean_leftover", "find_leftovers"]
