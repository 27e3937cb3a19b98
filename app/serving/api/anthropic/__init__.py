"""The Messages API of Anthropic (vllm-api.md section 7)."""
