"""Proofs that nothing is lost: clusters in a seed, faults on live processes, and one checker."""
