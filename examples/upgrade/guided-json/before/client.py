"""Asks for JSON with OpenAI's SDK. The field guided_json has no effect since vLLM 0.12."""

import json

import openai

SCHEMA = {
    "type": "object",
    "properties": {"minutes": {"type": "integer"}},
    "required": ["minutes"],
    "additionalProperties": False,
}
answer = openai.OpenAI().chat.completions.create(
    model="m",
    messages=[{"role": "user", "content": "How long does bread take?"}],
    extra_body=dict(guided_json=SCHEMA),
)
print(json.loads(answer.choices[0].message.content)["minutes"], "minutes")
