"""Perform, replay and record steps, with events, limits and hooks. Read `step`, then `perform`.

The engine knows no tool and no file format.
"""
