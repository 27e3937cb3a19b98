"""What each release of vLLM changed in the core; the extensions have such folders, too."""
