"""vLLM's own scheduler and Understudy's on the same random loads: `fidelity.judge_steps`."""
