"""Sessions in a closed loop against live endpoints, one system beside another."""
