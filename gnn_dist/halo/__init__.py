"""Halo exchange: the plan, the policies, and the one aggregation that every layer goes through."""
