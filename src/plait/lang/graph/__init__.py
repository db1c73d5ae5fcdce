"""Graph files: read, check, compile. Read `read` first."""
