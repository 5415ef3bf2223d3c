"""``headway calibrate``: a live run and its simulation, side by side."""
