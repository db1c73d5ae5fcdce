"""Answer a prompt."""

__version__ = "1.0.0"
__tool_type__ = "python"
__executor_id__ = "core/runtimes/python/function"
__tool_description__ = "Answer a prompt."


def execute(params, project_path):
    return "answer to: " + params["prompt"]
