"""Items of a map on the workers of a Dask cluster. Read `backend` first."""
