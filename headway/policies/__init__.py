"""Policies: a folder asks a question, a file in it answers."""
