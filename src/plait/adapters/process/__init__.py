"""Start processes through the guardian, and end them in time. Read `process` first."""
