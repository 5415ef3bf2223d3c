"""The scheduler service: one leads, the others stand by."""
