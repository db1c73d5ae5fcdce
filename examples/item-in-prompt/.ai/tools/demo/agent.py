"""Stands in for a language model: reads the JSON in its prompt and says what it found."""

import json
import sys

__version__ = "1.0.0"
__tool_type__ = "tool"
__executor_id__ = "core/runtimes/python/script"
__category__ = "demo"
__tool_description__ = "Answers a prompt that ends with one JSON object"


def main() -> None:
    prompt = json.load(sys.stdin)["prompt"]
    area = json.loads(prompt[prompt.index("{") :])
    print(f"{area['name']}: {len(area['files'])} files, note {area['note']!r}")


main()
