"""What it means to run a step: outcomes, events, replay, limits and hooks.  No tool is known
here.
"""
