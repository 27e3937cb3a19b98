"""What each release of vLLM changed in Messages."""
