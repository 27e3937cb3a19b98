"""`python -m app fleet`: servers, an indexer and a proxy on this machine, and what routing does to the TTFT.

From the outside in: `command` reads the flags, `demonstration` plays the workload under each policy, `fleet`
starts the processes, `proxy` forwards requests to the pod that a policy of `policies` chooses.
"""
