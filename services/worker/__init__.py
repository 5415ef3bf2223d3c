"""The worker: forward passes over a paged KV cache."""
