"""KV blocks: the device's pool and host memory."""
