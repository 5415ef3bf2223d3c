"""The simulator: the five cores on virtual time, with models of the wire and the device."""
