"""Single-line mutations of cores and shells, and what catches them."""
