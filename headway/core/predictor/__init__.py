"""The predictor's core: learns from samples, answers questions."""
