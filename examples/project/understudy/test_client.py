"""A client and a busy server. Replace `ask` with your client."""

import json
import time
import urllib.error
import urllib.request


def ask(base_url, question):
    """Returns the reply; sends the request again if the server is busy."""
    body = json.dumps({"messages": [{"role": "user", "content": question}]}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{base_url}/chat/completions", body, headers)
    while True:
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return json.load(answer)["choices"][0]["message"]["content"]
        except urllib.error.HTTPError as error:
            if error.code != 429:
                raise
            time.sleep(float(error.headers["Retry-After"]))


def test_a_busy_server_is_asked_again(understudy):
    understudy.fault("error", status=429, retry_after=1, times=1)
    assert ask(understudy.base_url, "Hello!")
    verdict = understudy.verdict()
    assert verdict.clean, verdict  # the client waited for the Retry-After
    assert verdict.count("429") == 1
