"""``headway profile``: what a deployment costs, measured, and how well that predicts it."""
