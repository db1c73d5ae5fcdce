"""A language server over the checks of `plait check`, for editors.

It reads what the editor shows, saved or not.  It starts nothing, asks nobody for trust and writes
no file.  In reading order:

    messages      frames and JSON-RPC on two streams
    positions     lines and UTF-16 columns ↔ offsets of a text
    documents     an open text: its document, its kind, its templates, what stands at an offset
    diagnostics   findings as diagnostics
    references    which fields name tools, blocks, nodes, tasks, agents, providers and files
    completion, hover, definition, symbols     the answers
    server        the lifecycle of a session, and which function answers which method
"""
