"""Defaults that releases of vLLM changed in their code."""
