"""vLLM's rules about requests, in vLLM's order."""
