// As client.py, with the fetch of Node.js: node client.mjs URL CONNECTIONS REQUESTS

const [url, connections, requests] = process.argv.slice(2);
const PAUSE_MS = 200;
const SHARE_OF_PAUSES = 0.5;
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const lost = {};
let answered = 0;
let number = 0;

async function ask(isStreamed) {
  const answer = await fetch(`${url}/v1/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({
      model: "m",
      messages: [{ role: "user", content: "Hello there" }],
      max_tokens: isStreamed ? 60 : 5,
      stream: isStreamed,
    }),
  });
  const text = await answer.text();
  if (answer.status !== 200) throw new Error(`status ${answer.status}`);
  if (isStreamed && !text.includes("data: [DONE]")) throw new Error("stream without an end");
  if (!isStreamed) JSON.parse(text);
}

async function work() {
  while (number < Number(requests)) {
    const isStreamed = number++ % 2 === 1;
    if (Math.random() < SHARE_OF_PAUSES) await pause(Math.random() * 2 * PAUSE_MS);
    try {
      await ask(isStreamed);
      answered += 1;
    } catch (error) {
      const reason = `${error.message}: ${error.cause?.code ?? error.cause?.message ?? ""}`.slice(
        0,
        100,
      );
      lost[reason] = (lost[reason] ?? 0) + 1;
    }
  }
}

await Promise.all(Array.from({ length: Number(connections) }, work));
console.log(JSON.stringify({ answered, lost }));
