"""Bursts on a live cluster that scales, policy by policy."""
