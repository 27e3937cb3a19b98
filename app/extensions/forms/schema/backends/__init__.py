"""What vLLM's structured output backends accept; start reading at `verdicts.verdict_on`."""
