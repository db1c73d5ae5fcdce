"""A tool as the seed documents describe one: JSON on stdin, the project on the command line, JSON on stdout."""

import argparse
import json
import sys
from pathlib import Path

__executor_id__ = "rye/core/runtimes/python/script"
__version__ = "1.0.0"
__tool_type__ = "python"
__category__ = "rye/file-system"
__tool_description__ = "The write tool"

CONFIG_SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


def execute(params: dict, project_path: str) -> dict:
    target = Path(project_path) / params["path"]
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(params["content"], encoding="utf-8")
    return {"success": True, "path": params["path"]}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--project-path", required=True)
    print(json.dumps(execute(json.load(sys.stdin), parser.parse_args().project_path)))
