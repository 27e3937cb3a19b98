"""The fixture `understudy` in a pytest of its own: what fails a test, and what its report has."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.running_server import ROOT
from tests.vllm_understudy.wire.conftest import PLUGIN

TIME = re.compile(r"\d\d:\d\d:\d\d\.\d{3} ")
CLIENT = '''
import json
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest


def ask(server, text="hi", headers={}):
    """The reply; None where the client hides an error."""
    body = {"model": "understudy-tiny", "messages": [{"role": "user", "content": text}]}
    headers = {"Content-Type": "application/json", **headers}
    url = f"{server.base_url}/chat/completions"
    try:
        with urlopen(Request(url, json.dumps(body).encode(), headers)) as answer:
            return json.load(answer)["choices"][0]["message"]["content"]
    except HTTPError as error:
        error.close()
        if error.code == 400:
            return None
        raise

'''
SEQUENCES = """
def test_a_sequence(understudy):
    understudy.replies(["one", "two", {"text": "three"}])
    assert [ask(understudy) for _ in range(3)] == ["one", "two", "three"]


def test_a_request_after_the_sequence(understudy):
    replies = understudy.replies(["one"])
    assert [ask(understudy), ask(understudy)] == ["one", None]
    assert replies.answered == 1


def test_a_reply_for_one_request(understudy):
    understudy.reply(then={"text": "once"}, times=1)
    understudy.reply(then={"text": "then"})
    assert [ask(understudy) for _ in range(3)] == ["once", "then", "then"]


def test_a_hidden_error(understudy):
    understudy.reply({"message": "hello"}, then={"text": "Hi."}, name="greet")
    assert ask(understudy, "hello") == "Hi."
    ask(understudy, "bye")


def test_an_expected_error(understudy):
    understudy.reply({"message": "hello"}, then={"text": "Hi."})
    assert ask(understudy, "bye") is None
    [entry] = understudy.unmatched()
    assert "The only rule is " in entry.error


def test_an_allowed_mismatch(understudy):
    understudy.reply({"message": "hello"}, then={"text": "Hi."})
    with understudy.allow_unmatched():
        assert ask(understudy, "bye")
    assert understudy.settings["unmatched"] is None


def test_without_replies(understudy):
    assert ask(understudy) and understudy.requests()[0].rule is None
"""


def run_pytest(folder: Path, text: str, *options: str, test_folder: Path | None = None) -> str:
    """Runs the tests in `text`, and returns the output without times.

    The tests run in `folder`, and their file is in `test_folder`, by default the same.
    Only our plugin is loaded, and those in `options`: the import of all others takes longer.
    """
    file = (test_folder or folder) / "test_client.py"
    file.write_text(CLIENT + text)
    command = [sys.executable, "-m", "pytest", "-p", PLUGIN, "-p", "no:cacheprovider", *options]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    variables = {
        name: text for name, text in os.environ.items() if not name.startswith(("PYTEST_", "SIM_"))
    }
    done = subprocess.run(
        [*command, "-rfE", "--rootdir", str(folder), str(folder)],
        cwd=folder,
        env={**variables, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=55,
    )
    return TIME.sub("", done.stdout + done.stderr)


def test_unmatched_request_fails_only_its_test(tmp_path: Path) -> None:
    output = run_pytest(tmp_path, SEQUENCES)
    failed = re.findall(r"FAILED test_client\.py::(\w+)", output)
    assert failed == ["test_a_request_after_the_sequence", "test_a_hidden_error"], output
    assert "2 failed, 5 passed" in output
    assert re.search(
        r"1 request matched no rule\. No rule answers this request\. The only rule is script at run "
        r"time: rule \d+ \(greet\): when\.message: the last message is 'bye', not one that is "
        r"'hello'\.",
        output,
    ), output
    report = output.partition("_ test_a_hidden_error _")[2]
    lines = re.sub(r"rule \d+", "rule N", report).splitlines()
    start = lines.index("seed 7; 2 requests, the oldest first:")
    assert lines[start + 1 : start + 4] == [
        "  /v1/chat/completions 200 'hello' -> 'Hi.'",
        "      script at run time: rule N (greet)",
        "  /v1/chat/completions 400 'bye'",
    ]
    assert "log of understudy" not in report, "the server has written nothing since its start"


SCOPES = """
import threading


def test_scopes_in_threads_are_apart(understudy):
    results = {}

    def run(name):
        with understudy.scope() as scope:
            texts = [f"{name} {number}" for number in range(5)]
            scope.replies(texts)
            scope.fault("error", status=503, times=1)
            asked = []
            while len(asked) < 5:
                try:
                    asked.append(ask(scope, name, headers=scope.headers))
                except HTTPError:
                    pass
            results[name] = asked == texts and len(scope.requests()) == 6
            assert {entry.request["messages"][0]["content"] for entry in scope.requests()} == {name}

    threads = [threading.Thread(target=run, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == dict.fromkeys("abcd", True)
    assert understudy.faults == [] and understudy.requests() == []


def test_two_tests_that_share_a_scope(understudy):
    with understudy.scope("one") as first:
        first.reply(then={"text": "first"})
        with pytest.raises(Exception, match="the scope 'one' is in use by test_client.py::test_two"):
            with understudy.scope("one"):
                pass
        assert ask(first, headers=first.headers) == "first"


def test_a_scope_that_loses_its_name_leaves_the_winner_alone(understudy):
    with understudy.scope("one") as first:
        with pytest.raises(Exception, match="The scope 'one' is in use by test_client.py::test_a"):
            with understudy.scope("one") as second:
                first.reply(then={"text": "first"})
                first.fault("error", status=503, path="/v1/completions")
                second.reply(then={"text": "second"})
        assert ask(first, headers=first.headers) == "first"
        assert [fault["status"] for fault in understudy.faults] == [503]
    assert understudy.faults == [] and understudy.ask("GET", "/admin/script/rules")["rules"] == []


def test_two_tests_whose_scopes_only_set_faults(understudy):
    in_use = "the scope 'one' is in use by another test, which has set faults"
    with understudy.scope("one") as first, understudy.scope("one") as second:
        first.fault("error", status=503)
        first.fault("error", status=504)
        with pytest.raises(Exception, match=in_use):
            second.fault("error", status=500)
        with pytest.raises(Exception, match=in_use):
            with understudy.scope("one"):
                pass
        understudy.clear_faults()
        second.fault("error", status=500)
    assert understudy.faults == []


def test_the_end_of_a_scope_checks_its_requests(understudy):
    with pytest.raises(AssertionError, match="1 request matched no rule"):
        with understudy.scope() as scope:
            scope.reply({"message": "x"}, then={"text": "X"})
            ask(scope, headers=scope.headers)
    understudy.unmatched()


def test_a_strict_scope_without_rules(understudy):
    with understudy.scope(unmatched="error") as scope:
        assert ask(scope, headers=scope.headers) is None
        assert "no rules are set" in scope.unmatched()[0].error
        assert ask(understudy)
"""


def test_tests_that_share_a_server_are_isolated_by_their_scopes(tmp_path: Path) -> None:
    output = run_pytest(tmp_path, SCOPES)
    assert "6 passed" in output, output


XDIST = """
@pytest.mark.parametrize("number", range(8))
def test_a_sequence(understudy, number):
    understudy.replies([f"{number} {turn}" for turn in range(3)])
    assert [ask(understudy) for _ in range(3)] == [f"{number} {turn}" for turn in range(3)]
    assert len(understudy.requests()) == 3


def test_a_hidden_error(understudy):
    understudy.replies(["one"])
    ask(understudy), ask(understudy)
"""


def test_fixture_serves_tests_in_several_xdist_workers(tmp_path: Path) -> None:
    options = ("-p", "xdist.plugin", "-n", "2")
    output = run_pytest(tmp_path, XDIST, *options)
    assert "1 failed, 8 passed" in output, output
    assert "FAILED test_client.py::test_a_hidden_error - Failed: 1 request matched no" in output


ASYNCIO = """
import asyncio

pytestmark = pytest.mark.MARKER


async def test_replies_at_the_same_time(understudy):
    understudy.replies([str(number) for number in range(10)])
    texts = await asyncio.gather(*[asyncio.to_thread(ask, understudy) for _ in range(10)])
    assert sorted(texts) == [str(number) for number in range(10)]


async def test_a_hidden_error(understudy):
    understudy.reply({"message": "x"}, then={"text": "X"})
    await asyncio.to_thread(ask, understudy)
"""


def check_asyncio(folder: Path, marker: str, *options: str) -> None:
    output = run_pytest(folder, ASYNCIO.replace("MARKER", marker), *options)
    assert "1 failed, 1 passed" in output, output
    assert "FAILED test_client.py::test_a_hidden_error" in output


def test_fixture_serves_async_tests_run_by_anyio(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "import pytest\n\n@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n"
    )
    check_asyncio(tmp_path, "anyio", "-p", "anyio")


@pytest.mark.pytest_asyncio
def test_fixture_serves_async_tests_run_by_pytest_asyncio(tmp_path: Path) -> None:
    check_asyncio(tmp_path, "asyncio", "-p", "pytest_asyncio")


MARKED = """
@pytest.mark.understudy(script="replies.yaml")
def test_script_beside_the_test(understudy):
    assert ask(understudy) == "From the file."


@pytest.mark.understudy(script=["understudy-tiny=replies.yaml"])
def test_script_for_a_model(understudy):
    assert ask(understudy) == "From the file."


@pytest.mark.understudy(script="missing.yaml")
def test_missing_script(understudy):
    pass


@pytest.mark.understudy(max_num_seqs="many")
def test_invalid_setting(understudy):
    pass


@pytest.mark.understudy(seed=3)
def test_hidden_error_of_a_marked_server(understudy):
    understudy.reply({"message": "hello"}, then={"text": "Hi."})
    ask(understudy, "bye")


def test_invalid_rule(understudy):
    understudy.reply({"mesage": "hello"}, then={"text": "Hi."})
"""


def test_marked_servers_report_each_fault_once_and_as_a_sentence(tmp_path: Path) -> None:
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "replies.yaml").write_text("rules:\n- then: {text: From the file.}\n")
    output = run_pytest(tmp_path, MARKED, test_folder=folder)
    assert "2 failed, 2 passed, 2 errors" in output, output
    assert (
        f"The script 'missing.yaml' of the marker understudy is not a file in {folder}." in output
    )
    assert (
        "the server did not start (exit status 1): setting max-num-seqs: 'many' (flag "
        "--max-num-seqs) must be a whole number" in output
    )
    assert output.count("1 request matched no rule. No rule answers this request.") == 1, output
    assert "During handling of the above exception" not in output
    assert re.search(
        r"ControlError: the server rejected POST /admin/script/rules \(400\): script at run time: "
        r"rule 1: when: unknown key 'mesage'; did you mean message\? The keys here are api, chance, ",
        output,
        re.MULTILINE,
    ), output
    assert "def ask(self" not in output, "the traceback ends at the line of the test"
