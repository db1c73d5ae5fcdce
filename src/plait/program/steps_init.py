"""Where tools and running meet: the kinds of step."""
