"""Measurements of a live system, and of how long its decisions take."""
