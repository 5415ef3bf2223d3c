"""Benchmarks that need more than the ``headway bench`` command."""
