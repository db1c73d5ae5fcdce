"""A shell tool as the seed documents describe one."""

import argparse
import json
import subprocess
import sys

__executor_id__ = "rye/core/runtimes/python/script"
__version__ = "1.0.0"
__tool_type__ = "python"
__category__ = "rye/bash"
__tool_description__ = "The bash tool"

CONFIG_SCHEMA = {
    "type": "object",
    "properties": {"command": {"type": "string"}, "timeout": {"type": "integer", "default": 120}},
    "required": ["command"],
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--project-path", required=True)
    project = parser.parse_args().project_path
    params = json.load(sys.stdin)
    done = subprocess.run(
        ["/bin/bash", "-c", params["command"]],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=params["timeout"],
    )
    print(
        json.dumps(
            {"success": done.returncode == 0, "stdout": done.stdout, "exit_code": done.returncode}
        )
    )
