"""Changes of each release of vLLM to the routes of adapters."""
