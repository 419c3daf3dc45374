"""Questions and their answers: a mechanism and a run are put to a bound.

Queries ask forwards (epsilon, delta), calibrations ask backwards (noise, rank, steps, rate, misalignment).
"""
