"""The papers' headline claims, each with its workload, its baselines and what we find."""
