"""What each release of vLLM changed in the routes of scale-out."""
