"""The planner: the cheapest instances that keep an SLO under a load."""
