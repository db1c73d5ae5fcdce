"""Ensemble files: read, check, compile. Read `compile` first."""
