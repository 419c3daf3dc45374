"""The bounds of M1 (project by a Wishart matrix, then add noise), one theorem per file.

Files with an underscore hold what several of these theorems share.
"""
