"""From a model back to its raw files, and from a raw file forward to shards and models."""
