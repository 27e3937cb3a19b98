"""What each release of vLLM changed in the routes for developers."""
