"""Headway: everything that waits."""
