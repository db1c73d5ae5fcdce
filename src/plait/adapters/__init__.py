"""Adapters: processes, HTTP, MCP, functions, files, journals on disk, git and Dask."""
