"""Optional features, each in its own package; nothing in the core imports them."""
