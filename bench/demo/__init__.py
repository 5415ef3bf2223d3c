"""The comparison of presets under a burst and an overload."""
