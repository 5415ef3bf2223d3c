"""The autoscaler: replica targets from token rates."""
