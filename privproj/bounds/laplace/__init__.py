"""The bound of the Laplace mechanism."""
