"""A small agent: it plans aloud, and then answers in JSON. It runs with vLLM 0.11 and 0.20."""

import json

import openai

MODEL = "Qwen/Qwen3-8B"
PLAN = {
    "type": "object",
    "properties": {"minutes": {"type": "integer"}},
    "required": ["minutes"],
    "additionalProperties": False,
}


def ask(
    client: openai.OpenAI, text: str, **options: object
) -> openai.types.chat.ChatCompletionMessage:
    """Returns the reply to a text."""
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": text}],
        max_tokens=300,
        extra_body=options,
    )
    return answer.choices[0].message


def main() -> None:
    """Prints the thoughts about a task, and the minutes that it takes."""
    client = openai.OpenAI()  # the URL is in OPENAI_BASE_URL
    thoughts = ask(client, "How do I bake bread?").reasoning
    print("thoughts:", thoughts[:60])
    reply = ask(client, "How long does it take? Answer in JSON.", structured_outputs={"json": PLAN})
    print("minutes:", json.loads(reply.content)["minutes"])


if __name__ == "__main__":
    main()
