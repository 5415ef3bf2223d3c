"""The autoscaler's core: replica targets, role changes, start times."""
