"""Minibatches: seeds, neighbours drawn over all shards, rows of features, in order and ahead."""
