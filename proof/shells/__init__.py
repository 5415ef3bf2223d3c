"""Whole clusters of the live services on virtual time: same loop, same shells, drawn faults."""
