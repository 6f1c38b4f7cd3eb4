"""The six stages; each runs by itself as ``python -m shardtrail.stages STAGE``."""

STAGES = {
    "download": "shardtrail.stages.download:download",
    "validate": "shardtrail.stages.validate:validate",
    "shard": "shardtrail.stages.shard:shard",
    "hash": "shardtrail.stages.hash:hash_shards",
    "train": "shardtrail.stages.train:train",
    "register": "shardtrail.stages.register:register",
}
"""Stage -> its function, in the order of the DAG. Named, not imported: one stage loads no other's libraries."""
