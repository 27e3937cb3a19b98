"""Prints the thoughts of a reply with OpenAI's SDK. The field has another name since vLLM 0.16."""

import openai

answer = openai.OpenAI().chat.completions.create(
    model="m",
    messages=[{"role": "user", "content": "How long does bread take?"}],
)
print(answer.choices[0].message.reasoning)
