"""The four languages of flow files: read, check and compile them. Read `load` first."""
