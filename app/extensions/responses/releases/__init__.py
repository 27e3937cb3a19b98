"""What each release of vLLM changed in responses."""
