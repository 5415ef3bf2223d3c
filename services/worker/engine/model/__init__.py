"""Models: loading, supported families, decoders, quantisation, tensor parallelism."""
