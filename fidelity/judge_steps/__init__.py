"""vLLM's own scheduler and Understudy's on the same random loads: `make judge-steps`."""
