"""Implement the command line: parse the arguments, call one function of :mod:`privproj`, render the result."""
