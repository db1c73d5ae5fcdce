"""Errors, values, documents and safe files for all packages. Read `errors` and `values` first."""
