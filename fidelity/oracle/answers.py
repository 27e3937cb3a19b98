"""Stores the answers of a real vLLM: `.oracle/VERSION/answers/CONFIGURATION.jsonl`.

The files are recordings in the format of `understudy record --proxy`, with further fields in
each line, so `understudy drift` and `--replay` read them, too.
"""

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from pathlib import Path

import msgspec

from app.extensions.recording.comparison import ReceivedAnswer
from app.extensions.recording.exchange import (
    FORMAT,
    VERSION,
    Data,
    Exchange,
    Header,
    RecordedAnswer,
    RecordedChunk,
    RecordedRequest,
    data_of,
    line_of,
)
from fidelity.oracle.cases import Case
from fidelity.oracle.comparing import Outcome
from fidelity.oracle.configurations import CONFIGURATIONS, STORE, STORE_NAME
from fidelity.oracle.model import MARKS
from fidelity.oracle.sending import Counts


class StoredAnswer(Exchange, frozen=True):
    """A line of a file: an exchange, and the case that it belongs to.

    Attributes:
        case: Name of the case.
        digest: Hash of its request, which tells whether the case has changed since.
        run: 0 or 1; every configuration is recorded twice.
        counts: Growth of the counters that the case names.
    """

    case: str
    digest: str
    run: int
    counts: Counts

    def outcome(self) -> Outcome:
        """Returns the answer as it came, and the growth of the counters."""
        answer = ReceivedAnswer(self.answer.status, self.answer.headers, self.answer.body())
        return Outcome(answer, self.counts)


_decoder = msgspec.json.Decoder(StoredAnswer)


def file_of(version: str, configuration: str) -> Path:
    """Returns the file with the answers of a version in a configuration."""
    return STORE / version / "answers" / f"{configuration}.jsonl"


def help_file_of(version: str) -> Path:
    """Returns the file with the output of a version's `vllm serve --help=all`."""
    return STORE / version / "help.txt"


def digest_of(case: Case) -> str:
    """Returns a hash of all that determines the request of a case and its server.

    It is the same in every checkout, so that recorded answers can be copied.
    """
    parts = (
        case.method,
        case.path,
        sorted(case.headers.items()),
        case.body,
        sorted(case.counters),
        CONFIGURATIONS[case.configuration],
        MARKS,
    )
    text = repr(parts).replace(str(STORE), STORE_NAME)
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def stored(case: Case, run: int, answer: ReceivedAnswer, counts: Counts) -> StoredAnswer:
    """Returns an answer in the form of the file."""
    request = RecordedRequest(
        case.method, case.path, list(case.headers.items()), _request_body(case)
    )
    chunk = RecordedChunk(0.0, data_of(answer.body))
    recorded = RecordedAnswer(answer.status, answer.headers, 0.0, [chunk], 0.0)
    return StoredAnswer(
        at_s=0.0,
        request=request,
        answer=recorded,
        case=case.name,
        digest=digest_of(case),
        run=run,
        counts=counts,
    )


def write_answers(version: str, configuration: str, answers: Sequence[StoredAnswer]) -> None:
    """Writes a file; it appears when it is complete."""
    path = file_of(version, configuration)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_bytes(recording_of(f"vLLM {version}, {configuration}", answers))
    partial.replace(path)


def read_answers(version: str, configuration: str) -> dict[str, list[StoredAnswer]]:
    """Returns the answers of each case by its name, in the order of the runs."""
    path = file_of(version, configuration)
    return answers_in(path.read_bytes()) if path.exists() else {}


def recording_of(target: str, answers: Iterable[StoredAnswer]) -> bytes:
    """Returns the content of a file with answers of a server."""
    lines = [line_of(Header(FORMAT, VERSION, target=target)), *map(line_of, answers)]
    return b"".join(lines)


def answers_in(content: bytes) -> dict[str, list[StoredAnswer]]:
    """Returns the answers of a file by the names of their cases, in the order of the runs."""
    answers: dict[str, list[StoredAnswer]] = {}
    for line in content.splitlines()[1:]:
        answer = _decoder.decode(line)
        answers.setdefault(answer.case, []).append(answer)
    return answers


def current_answers(
    version: str, configuration: str, cases: Sequence[Case]
) -> dict[str, list[StoredAnswer]]:
    """Returns the stored answers to requests that are still those of the cases, by name."""
    return answers_to(cases, read_answers(version, configuration))


def answers_to(
    cases: Sequence[Case], answers: dict[str, list[StoredAnswer]]
) -> dict[str, list[StoredAnswer]]:
    """Returns the answers to requests that are still those of the cases, by name."""
    return {
        case.name: answers[case.name]
        for case in cases
        if case.name in answers and answers[case.name][0].digest == digest_of(case)
    }


def is_current(answers: dict[str, list[StoredAnswer]], cases: Sequence[Case]) -> bool:
    """Returns whether the stored answers are those to the requests of these cases."""
    digests = {name: stored_answers[0].digest for name, stored_answers in answers.items()}
    return digests == {case.name: digest_of(case) for case in cases}


def _request_body(case: Case) -> Data:
    if case.body is None:
        return ""
    if isinstance(case.body, bytes):
        return data_of(case.body)
    if isinstance(case.body, str):
        return case.body
    return msgspec.json.encode(case.body).decode()
