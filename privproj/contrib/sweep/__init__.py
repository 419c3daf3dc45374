"""Evaluate grids of parameters, in parallel or on a Dask cluster."""
