"""One file for each client: its cases, and those that are refused by design."""
