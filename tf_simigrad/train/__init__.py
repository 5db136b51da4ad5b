"""The training step that runs inside ``fit``: accumulate, and update when the accumulation is full."""
