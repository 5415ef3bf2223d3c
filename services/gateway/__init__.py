"""The gateway: what clients call, and where workers bring tokens."""
