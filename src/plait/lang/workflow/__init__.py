"""Workflow files: compose, check, compile. Read `compile` first."""
