"""The Responses API of OpenAI (vllm-api.md section 6)."""
