"""Checks of vLLM's structured output backends; start reading at `verdicts.verdict_on`."""
