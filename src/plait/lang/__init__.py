"""Documents and what they mean: which fields are templates, which names exist where, what is
wrong.
"""
