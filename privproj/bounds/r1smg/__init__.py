"""The claim about Gaussian noise along one random direction, refuted."""
