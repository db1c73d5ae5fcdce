"""Worktrees for the items of a map, and how their work is merged. Read `isolation` first."""
