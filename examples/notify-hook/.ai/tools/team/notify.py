"""Send a message.  Here it goes to a file; a real one would send a mail or call a web hook."""

import json
import sys
from pathlib import Path

__version__ = "1.0.0"
__tool_type__ = "python"
__executor_id__ = "core/runtimes/python/script"
__tool_description__ = "Send a message to somebody"

CONFIG_SCHEMA = {
    "type": "object",
    "properties": {
        "to": {"type": "string", "description": "who gets it"},
        "text": {"type": "string", "description": "what it says"},
    },
    "required": ["to", "text"],
    "additionalProperties": False,
}


def main() -> None:
    message = json.load(sys.stdin)
    with Path("messages.txt").open("a", encoding="utf-8") as file:
        file.write(f"to {message['to']}: {message['text']}\n")


main()
