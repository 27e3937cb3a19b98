"""Changes of each release of vLLM to responses."""
