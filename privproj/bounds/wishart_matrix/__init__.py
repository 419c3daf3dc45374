"""The refuted bound of the matrix Wishart projection."""
