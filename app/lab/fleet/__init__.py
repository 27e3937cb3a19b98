"""`python -m app fleet`: servers, an indexer and a proxy on one machine, to compare routing policies by TTFT.

`command` reads the flags, sends the workload under each policy and shows the figures. `fleet` starts the
processes. `proxy` forwards requests to the pod chosen by a policy of `routing`.
"""
