"""Compares the tokens of images with those of vLLM's own processors."""
