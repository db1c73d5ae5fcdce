"""Stands in for a coding agent: reads the failure in its prompt and mends the one fault that it
knows.
"""

import json
import sys
from pathlib import Path

__version__ = "1.0.0"
__tool_type__ = "tool"
__executor_id__ = "core/runtimes/python/script"
__category__ = "demo"
__tool_description__ = "Mends a sum that is one too large"


def main() -> None:
    call = json.load(sys.stdin)
    if "AssertionError: 7 != 6" not in call["prompt"]:
        sys.exit("I do not know this failure")
    source = Path(call["directory"], "sums.py")
    source.write_text(source.read_text().replace(" + 1", ""))
    print("total() added one too many; mended")


main()
