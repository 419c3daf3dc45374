"""Stop adaptively chosen releases at a fixed privacy budget (privacy filters)."""
