"""Says how many of the wanted pages are there, in the form that `validate` reads."""

import json
from pathlib import Path

WANTED = ["intro", "usage", "errors", "changes"]
there = [name for name in WANTED if Path("pages", f"{name}.md").exists()]
print(
    json.dumps(
        {
            "completion_percentage": 100 * len(there) // len(WANTED),
            "status": "complete" if len(there) == len(WANTED) else "incomplete",
            "implemented": there,
            "missing": [name for name in WANTED if name not in there],
        }
    )
)
