"""Bounds of the memory for faults, which count also before anything is stored."""

MAX_HEADER_RULES = 500
"""Most rules of X-Fault headers, by last use."""
RULE_BYTES = 4096
"""Estimated memory of a rule."""
MAX_CLIENTS = 1000
"""Most clients in the audit, by last use."""
CLIENT_BYTES = 4096
"""Estimated memory of a client."""
MAX_FAILED_BODIES = 4096
"""Most failed bodies of all clients, by last use."""
FAILED_BODY_BYTES = 1024
"""Estimated memory of a failed body."""
