"""The MCP server `plait mcp`: tools, flows, prompts and runs of a project for other programs.

It calls `app` and shows with `views`, as the commands do.  The framing is written here: the
official SDK takes a second to import.
"""
