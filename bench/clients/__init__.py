"""Other people's clients against a cluster, each in an environment of its own."""
