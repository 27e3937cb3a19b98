"""The planner: the cheapest fleet that meets an SLO."""
