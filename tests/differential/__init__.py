"""Fuzzing of the command line: what is fed to it, what must hold of every call, and a driver that counts."""
