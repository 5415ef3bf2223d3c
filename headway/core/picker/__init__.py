"""The picker's decisions: which endpoint gets a request that a gateway asks about, and when."""
