"""Where the items of a fan run: threads of this process, or what else is a `run.backend.Backend`."""
