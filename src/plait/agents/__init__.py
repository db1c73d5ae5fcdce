"""Agent sessions and model turns, with budgets, permissions, providers. Read `session` first."""
