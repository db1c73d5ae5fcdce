"""An MCP server whose tool writes the `_meta` of each call into the file that its argument names.

It reads lines of JSON by itself, so that no library changes what came.
"""

import json
import sys


def answer(method, params):
    match method:
        case "initialize":
            return {
                "protocolVersion": params["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "meta", "version": "1"},
            }
        case "tools/list":
            return {"tools": [{"name": "note", "inputSchema": {"type": "object"}}]}
        case "tools/call":
            with open(sys.argv[1], "a", encoding="utf-8") as file:
                file.write(json.dumps(params.get("_meta")) + "\n")
            return {"content": [{"type": "text", "text": "noted"}]}
    return {}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        result = answer(message["method"], message.get("params", {}))
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
