"""Add two numbers."""

__version__ = "1.0.0"
__tool_type__ = "python"
__executor_id__ = "core/runtimes/python/function"
__tool_description__ = "Add two numbers."


def execute(params, project_path):
    return {"sum": params["a"] + params.get("b", 2)}
