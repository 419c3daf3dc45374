"""Parse arguments of the command line, call privproj, and print the result."""
