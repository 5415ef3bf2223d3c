"""What arrives: arrival processes and recorded traces."""
