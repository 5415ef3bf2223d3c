"""The cores: what each service decides, without I/O."""
