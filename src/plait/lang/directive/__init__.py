"""Directive files: a prompt with a head. Read `read` first."""
