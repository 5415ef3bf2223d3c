"""Headway: everything that decides.

Pure: nothing below this package (but the command line) reads a clock, opens a file or a
socket, logs, or rolls its own dice.
"""
