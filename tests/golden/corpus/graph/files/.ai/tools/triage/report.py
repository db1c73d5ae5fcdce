__version__ = "1.0.0"
__tool_type__ = "python"
__executor_id__ = "core/runtimes/python/function"
__tool_description__ = "Say what became of each report."


def execute(params, project_path):
    lines = [f"{one['id']}: {one['text']}" for one in params["drafts"]]
    lines += [f"{name}: closed" for name in params["closed"]]
    return {"text": "\n".join([*lines, f"{params['round']} rounds"])}
