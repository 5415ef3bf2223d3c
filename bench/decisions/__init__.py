"""Time per decision: policies and whole scheduler cycles."""
