"""The tests of somebody's client, which has a package `app`, too; they run in a pytest of their
own.
"""

import json
import time
import urllib.error
import urllib.request

import pytest

import app


def ask(server, tries=3):
    body = json.dumps({"prompt": "hi", "max_tokens": 1}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{server.base_url}/completions", body, headers)
    for _ in range(tries):
        try:
            return urllib.request.urlopen(request, timeout=10).status
        except urllib.error.HTTPError as error:
            status = error.code
            time.sleep(float(error.headers.get("Retry-After", 0)))
    return status


def test_our_app_is_ours():
    assert app.MINE


def test_the_client_waits_and_tries_again(understudy):
    understudy.fault("error", status=429, retry_after=1, times=1)
    assert ask(understudy) == 200
    assert understudy.verdict().clean, understudy.verdict()
    assert understudy.verdict().count("429") == 1


def test_faults_of_one_test_are_not_those_of_the_next(understudy, understudy_server):
    assert understudy is understudy_server
    assert understudy.faults == [] and understudy.verdict().clients == {}
    assert ask(understudy, 1) == 200
    assert understudy.settings["max-model-len"] == 1234


@pytest.mark.understudy(max_num_seqs=1)
def test_with_a_server_of_its_own(understudy, understudy_server):
    assert understudy.port != understudy_server.port
    assert (understudy.settings["max-num-seqs"], understudy.settings["max-model-len"]) == (1, 1234)


def test_that_fails_shows_the_journal(understudy):
    assert ask(understudy, 1) == 500
