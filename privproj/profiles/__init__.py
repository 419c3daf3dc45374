"""Representations of a bound (privacy profile, Renyi curve, ``(eps, delta)`` rule) and conversions between them."""
