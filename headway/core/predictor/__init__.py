"""The predictor's core: learns from samples and answers questions."""
