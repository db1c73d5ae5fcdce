__version__ = "1.0.0"
__tool_type__ = "python"
__executor_id__ = "core/runtimes/python/function"
__tool_description__ = "Draft answers; they are good from the second round on."


def execute(params, project_path):
    round_ = params["round"] + 1
    drafts = [
        {"id": one["id"], "text": "We look into: " + one["text"], "good": round_ >= 2}
        for one in params["open"]
    ]
    return {"drafts": drafts, "round": round_}
