"""The console, live or simulated: its rows, its figures, and what has changed."""
