"""``headway profile run``: what one deployment costs, measured on its own workers."""
