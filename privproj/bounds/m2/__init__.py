"""The bounds of M2 (add noise, then project to a random subspace), one theorem per file.

Files with an underscore hold what several of these theorems share.
"""
