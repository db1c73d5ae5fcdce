"""The composition root: it connects flows, tools and adapters, and runs them. Read `api` first."""
