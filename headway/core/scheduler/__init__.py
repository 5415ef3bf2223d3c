"""The scheduler's core: holds, packs, places and moves requests."""
