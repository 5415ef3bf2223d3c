"""The second fidelity: the same policies over small views; no cores and no messages."""
