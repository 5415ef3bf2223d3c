"""Who calls, who may call what, and the files that prove it."""
