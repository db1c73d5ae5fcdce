"""What it means to run: outcomes, events, conditions; no tool is known here."""
