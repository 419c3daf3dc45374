"""Bounds of Gaussian mixing in two stages."""
