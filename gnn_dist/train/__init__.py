"""Training: configuration, loss, metrics, the loop, and what it leaves on disk."""
