"""Runs, plans and flows as text, live frames, JSON and diagrams. Read `progress` first."""
