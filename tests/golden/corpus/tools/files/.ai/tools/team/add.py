"""Add two numbers."""

__version__ = "1.0.0"
__tool_type__ = "python"
__executor_id__ = "core/runtimes/python/function"
__tool_description__ = "Add two numbers."
CONFIG_SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer", "default": 2}, "word": {"enum": ["sum", "list"]}},
    "required": ["a"],
    "additionalProperties": False,
}


def execute(params, project_path):
    return {"sum": params["a"] + params.get("b", 2)}
