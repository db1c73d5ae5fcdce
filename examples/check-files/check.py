"""Read one JSON file; the exit code says whether that worked."""

import json
import sys
from pathlib import Path

try:
    json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
except json.JSONDecodeError as error:
    sys.exit(f"line {error.lineno} is not JSON")
