"""The gateway's cost per request and token, beside its peers."""
