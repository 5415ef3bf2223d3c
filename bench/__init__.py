"""What measures a live system, and how long its decisions take."""
