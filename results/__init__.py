"""How a run leaves: tables, files, plots."""
