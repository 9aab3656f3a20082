"""Models written for one machine, on shards: `parallelize`."""
