"""What one key can do to another: a catalogue of abuses, and a runner that measures each."""
