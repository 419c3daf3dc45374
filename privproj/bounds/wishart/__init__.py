"""The bounds of the vector Wishart projection, one theorem per file.

Files with an underscore hold what several of these theorems share.
"""
