"""Arrival processes and recorded traces."""
