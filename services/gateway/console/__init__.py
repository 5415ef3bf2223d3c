"""The operator's page: what it shows, its stream of changes, and its files."""
