"""The names, templates and tool calls of flow files, for checks. Read `scopes` first."""
