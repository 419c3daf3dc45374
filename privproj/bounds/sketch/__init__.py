"""The bounds of the secret Gaussian sketch, one theorem per file.

Files with an underscore hold what several of these theorems share.
"""
