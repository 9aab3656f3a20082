"""What one rank holds: the partition folder on disk, and a shard in memory.

`format` and `reader` are NumPy only; `structure`, `plan` and `shard` use torch. Nothing is
re-exported here, so that reading a folder's `meta.json` does not load torch.
"""
