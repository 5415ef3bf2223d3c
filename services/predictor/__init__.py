"""The predictor: output length estimates."""
