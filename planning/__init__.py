"""What fits costs to measurements, and plans with them."""
