"""Load on a server: clients and workloads that fleet and benchmarks share."""
