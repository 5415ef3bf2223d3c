"""Faults on the live processes of a cluster under load, and what its clients read meanwhile."""
