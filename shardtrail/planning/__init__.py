"""Which sample goes to which shard: group -> order -> cut."""

from shardtrail.planning.plan import PLAN_SCHEMA, make_plan

__all__ = ["PLAN_SCHEMA", "make_plan"]
