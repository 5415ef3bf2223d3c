"""The comparison of presets under one burst."""
