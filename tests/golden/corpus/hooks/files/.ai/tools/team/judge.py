"""Say what is to follow."""

__version__ = "1.0.0"
__tool_type__ = "python"
__executor_id__ = "core/runtimes/python/function"
__tool_description__ = "Say what is to follow."


def execute(params, project_path):
    return {"verb": "continue"} if params["code"] == 3 else {"verb": "fail", "why": "not known"}
