"""Costs of a model on a device: profiles, pass times, velocities, buckets."""
