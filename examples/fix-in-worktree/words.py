"""Words of a text."""


def count(text):
    return len(text.split())
