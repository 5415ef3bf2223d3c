"""What every service's shell is made of."""
