"""What a bound says: a curve of delta against eps, in the representations of the field, and its exact inverses."""
