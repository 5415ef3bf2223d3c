"""A plain vLLM beside Headway: its own orders, Headway's order inside it, and Headway over it."""
