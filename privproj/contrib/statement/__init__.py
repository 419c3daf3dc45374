"""Write and verify privacy statements."""
