"""A whole cluster in a seed: every core, every link, every fault, in virtual time."""
