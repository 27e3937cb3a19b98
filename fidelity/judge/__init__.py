"""vLLM's own HTTP tests, run against Understudy: `make judge-vllm`."""
