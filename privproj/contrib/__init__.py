"""Optional features, each in a package of its own; nothing in the core imports them."""
