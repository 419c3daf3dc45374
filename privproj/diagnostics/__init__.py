"""Numbers that describe a training run and guarantee nothing."""
