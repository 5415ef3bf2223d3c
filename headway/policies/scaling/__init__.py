"""How many instances of each role? One file per answer."""
