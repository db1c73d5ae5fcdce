"""A tool."""

__version__ = "1.0.0"
__executor_id__ = "core/runtimes/python/functon"


def execute(params, project_path):
    return params
