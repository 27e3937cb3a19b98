"""vLLM's own HTTP tests, run against Understudy: `fidelity.judge`."""
