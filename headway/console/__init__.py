"""What the console shows, live or simulated: which rows, which figures, and what has changed."""
