"""Every kind of step: actions, lists, maps, graphs, tasks, worktrees. Read `action_step` first."""
