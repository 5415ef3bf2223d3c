"""The runner of live comparisons: systems × regimes × seeds, with a table and verdicts."""
