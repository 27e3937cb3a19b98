"""vLLM's own command line: `serve` takes it as it is, and plays what has a meaning here (docs/serve.md)."""
