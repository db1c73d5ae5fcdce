__version__ = "1.0.0"
__tool_type__ = "python"
__executor_id__ = "core/runtimes/python/function"
__tool_description__ = "Say what kind of report a text is."


def execute(params, project_path):
    is_bug = "crash" in params["text"] or "update" in params["text"]
    return {"id": params["id"], "kind": "bug" if is_bug else "praise", "text": params["text"]}
