"""Changes of each release of vLLM to the reports of the load."""
