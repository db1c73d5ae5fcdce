"""Count the open points in a file of notes."""

__executor_id__ = "core/runtimes/python/function"
__version__ = "1.0.0"

from pathlib import Path


def execute(params, project_path):
    lines = (Path(project_path) / params["file"]).read_text().splitlines()
    return {"file": params["file"], "open": sum(line.startswith("open:") for line in lines)}
