"""What a flood does to others: one tenant's, or that of a class of requests that yields."""
