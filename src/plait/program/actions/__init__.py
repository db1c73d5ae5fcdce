"""The actions of steps, one module for each. Read `shell` first."""
