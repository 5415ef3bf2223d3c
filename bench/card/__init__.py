"""A bench of one GPU: the engine's passes against what the card can do and against transformers."""
