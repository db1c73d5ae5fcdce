"""Tools: find them, check them, bind them to the input of a primitive; start nothing.

Reading order: `spaces` (where files are), `headers` and `tool_file` (what they contain), `chain`
and `chain_rules` (what runs what), `trust` (what may run), `environment`, `anchors`, `config` (what
they get), `bind` and `invocation` (a complete call), `prepare` and `call`.
"""
