"""Abuses of one key beside another's requests: a catalogue, and a runner that measures each."""
