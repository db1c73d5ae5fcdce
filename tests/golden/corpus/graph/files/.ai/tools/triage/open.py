__version__ = "1.0.0"
__tool_type__ = "python"
__executor_id__ = "core/runtimes/python/function"
__tool_description__ = "Part reports that need an answer from those that do not."


def execute(params, project_path):
    open_ = [one for one in params["sorted"] if one["kind"] == "bug"]
    closed = [one["id"] for one in params["sorted"] if one["kind"] != "bug"]
    return {"open": open_, "closed": closed, "count": len(open_)}
