"""A small MCP server with one tool, in plain Python: JSON-RPC, one message per line."""

import json
import sys

TOOL = {
    "name": "count_words",
    "description": "Count the words of a text",
    "inputSchema": {
        "type": "object",
        "properties": {"text": {"type": "string"}},
        "required": ["text"],
    },
}


def result(method: str, params: dict) -> dict | None:
    match method:
        case "initialize":
            return {
                "protocolVersion": params["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "words", "version": "1.0.0"},
            }
        case "tools/list":
            return {"tools": [TOOL]}
        case "tools/call":
            words = len(params["arguments"]["text"].split())
            return {"content": [{"type": "text", "text": str(words)}], "isError": False}
        case "ping":
            return {}
    return None


for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    answer = {"jsonrpc": "2.0", "id": request["id"]}
    found = result(request["method"], request.get("params") or {})
    if found is None:
        answer["error"] = {"code": -32601, "message": f"unknown method {request['method']}"}
    else:
        answer["result"] = found
    print(json.dumps(answer), flush=True)
