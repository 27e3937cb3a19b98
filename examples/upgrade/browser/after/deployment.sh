vllm serve Qwen/Qwen3-8B --allowed-origins '["*"]'
