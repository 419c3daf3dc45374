"""The bound of random clipping by Gaussian probes, its exact profile."""
