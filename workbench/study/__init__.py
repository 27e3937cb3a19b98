"""Studies of running fleets: load and latencies by metrics, compared with a simulation."""
