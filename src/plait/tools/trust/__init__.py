"""Decide which files may run: signatures, keys, trust, lockfiles. Read `decisions` first."""
