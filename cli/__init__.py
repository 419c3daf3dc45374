"""The command line: parse arguments, call a function of privproj, print the result."""
