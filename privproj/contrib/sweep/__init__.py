"""Evaluate a query on a grid of parameters in parallel.

The queries run in several processes or on a Dask cluster.
"""
