"""Parameters of POST /inference/v1/generate that the routes of the core have, too."""

import pytest

from tests.client import Client, events


@pytest.mark.parametrize("n", [1, 2])
def test_each_choice_of_generate_joins_its_own_tokens(client: Client, n: int) -> None:
    params = {"max_tokens": 10, "ignore_eos": True, "n": n, "stream_interval": 4}
    body = {"token_ids": [5], "sampling_params": params, "stream": True, "output_mode": "text"}
    lengths: dict[int, list[int]] = {}
    for event in events(client.post("/inference/v1/generate", body)):
        choice = event["choices"][0]
        lengths.setdefault(choice["index"], []).append(len(choice["token_ids"]))
    assert lengths == {index: [1, 4, 4, 1] for index in range(n)}


def test_generate_accepts_several_choices_with_a_temperature_just_above_zero(
    client: Client,
) -> None:
    params = {"n": 2, "max_tokens": 3, "temperature": 1e-6}
    body = {"token_ids": [5, 6], "sampling_params": params}
    assert client.post("/inference/v1/generate", body).status_code == 200
