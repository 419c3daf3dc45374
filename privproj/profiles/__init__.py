"""Privacy profiles, Renyi curves, ``(eps, delta)`` guarantees, and their conversions."""
