"""The gateway: clients call it, and workers bring it their tokens."""
