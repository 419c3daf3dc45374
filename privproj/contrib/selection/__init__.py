"""Account for private selection of the best of several runs."""
