"""Seeded fuzzers: what peers, clients and the store may send, and what must come of it."""
