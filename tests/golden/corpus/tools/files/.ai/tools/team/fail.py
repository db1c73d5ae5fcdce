"""Fail always."""

__version__ = "1.0.0"
__tool_type__ = "python"
__executor_id__ = "core/runtimes/python/function"
__tool_description__ = "Fail always."


def execute(params, project_path):
    raise ValueError("this tool fails")
