"""Items of a map on other machines: their jobs, payloads and workers. Read `jobs` first."""
