"""Representations of a bound: privacy profile, Renyi curve or (epsilon, delta) rule, and conversions between them."""
