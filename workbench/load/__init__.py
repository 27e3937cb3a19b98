"""Load on a server: the client and the workloads that fleet and benchmarks share."""
