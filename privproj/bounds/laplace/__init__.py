"""The bound of the Laplace mechanism, its exact profile."""
