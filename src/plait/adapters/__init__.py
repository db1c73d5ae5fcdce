"""Adapters: processes, HTTP, MCP, functions, files, journals on disk, git, Dask, OpenTelemetry.

They implement the ports of `engine`, `agents` and `program`.
"""
