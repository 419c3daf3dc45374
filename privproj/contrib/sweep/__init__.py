"""Evaluate a query on a grid of parameters, in parallel processes or on a Dask cluster."""
