"""Prints a reply with Anthropic's SDK. Thoughts are blocks before the text since vLLM 0.17."""

import os

import anthropic

message = anthropic.Anthropic(base_url=os.environ["ANTHROPIC_BASE_URL"]).messages.create(
    model="Qwen/Qwen3-8B",
    max_tokens=2000,
    messages=[{"role": "user", "content": "How long does bread take?"}],
)
print(*(block.text for block in message.content if block.type == "text"))
