"""The runtime that all services share."""
