"""Make it one longer."""

__version__ = "1.0.0"
__tool_type__ = "python"
__executor_id__ = "core/runtimes/python/function"
__tool_description__ = "Make it one longer."


def execute(params, project_path):
    return (params.get("text") or "") + "a"
