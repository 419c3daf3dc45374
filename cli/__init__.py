"""The command line: parse, call one function of :mod:`privproj`, render."""
