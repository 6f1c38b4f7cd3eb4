"""Which sample goes to which shard: group -> order -> cut."""

from shardtrail.manifest import PLAN as PLAN_SCHEMA
from shardtrail.planning.plan import make_plan, plan_manifest

__all__ = ["PLAN_SCHEMA", "make_plan", "plan_manifest"]
