"""`python -m app fleet`: servers, an indexer and a proxy on this machine, and what routing does to the TTFT.

From the outside in: `options` reads the flags, `command` sends the workload under each policy, `fleet` starts
the `processes`, `proxy` forwards requests to the pod that a policy of `routing` chooses, `report` shows the
figures.
"""
