"""What touches a training process: the hook inside it, the gatherers outside it."""
