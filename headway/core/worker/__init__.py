"""A worker's core: plans forward passes, owns KV blocks, moves requests."""
