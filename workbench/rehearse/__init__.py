"""Rehearsals of an upgrade of vLLM: what breaks in a client, before the cluster is upgraded."""
