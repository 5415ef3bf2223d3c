"""The worker's backend: runs the forward passes that the worker's core has planned."""
