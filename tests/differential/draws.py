"""Draws that the generators of the core and of optional features share."""

import math


def log_uniform(rng, low, high):
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def log_uniform_integer(rng, low, high):
    """Return a log-uniform integer, or one of the ends in 10 % of draws."""
    return rng.choice([low, high]) if rng.random() < 0.1 else round(log_uniform(rng, low, high))


def noise_multiplier(rng, query, gain=1.0):
    """Draw a noise multiplier for which the run has an epsilon around 1 (from 1e-3 to 50)."""
    steps, rate = query.run.get("steps", 1), query.run.get("sampling_rate", 1.0)
    group = query.run.get("group_size", 1)
    level = max(rate * math.sqrt(steps), 1e-3) if rate < 1.0 else math.sqrt(steps)
    return float(f"{max(0.2, level) * group * gain * log_uniform(rng, 0.4, 12.0):.6g}")
