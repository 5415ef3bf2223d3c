"""The worker's engine beside generate(), continuous batching and vLLM."""
