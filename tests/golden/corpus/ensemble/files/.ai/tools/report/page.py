"""Put the page of a report together."""

__executor_id__ = "core/runtimes/python/function"
__version__ = "1.0.0"


def execute(params, project_path):
    return f"# {params['title']}\n{params['summary']}\nOpen points: {params['open']}"
