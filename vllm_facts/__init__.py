"""vLLM's command line: `serve` accepts all options, and maps some to settings (docs/serve.md)."""
