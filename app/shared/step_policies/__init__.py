"""Rules of vLLM's scheduler beyond the plain case, a file for each. Start with `choice`."""
