"""Answers of rules with `times`, counted in files that several processes share."""

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.extensions.scripts import shared_uses
from app.extensions.scripts.shared_uses import SharedUses

RULES = st.sampled_from(["one", "two"])
SCOPES = st.sampled_from([None, "a", "b"])


@pytest.fixture
def uses(tmp_path: Path) -> SharedUses:
    return SharedUses(tmp_path)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["take", "remove", "clear"]), RULES, SCOPES)))
def test_use_counts_of_rules_and_scopes_are_separate(
    calls: list[tuple[str, str, str | None]],
) -> None:
    expected: Counter[tuple[str, str | None]] = Counter()
    with TemporaryDirectory() as folder:
        uses = SharedUses(Path(folder))
        for call, rule, scope in calls:
            if call == "take":
                assert uses.take(rule, limit=3, scope=scope) is (expected[rule, scope] < 3)
                expected[rule, scope] = min(expected[rule, scope] + 1, 3)
            elif call == "remove":
                uses.remove(rule)
                expected[rule, None] = 0
            else:
                uses.clear()
                expected.clear()
            assert uses.count(rule, scope) == expected[rule, scope]


def test_counts_of_many_scopes_are_bounded_and_keep_the_count_of_the_rule(
    uses: SharedUses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_uses, "MAX_GROUP_FILES", 2)
    assert uses.take("rule", limit=1)
    for number in range(2_000):
        assert uses.take("rule", limit=1, scope=str(number))
        assert uses.count("rule", str(number)) == 1
    groups = Counter(path.parent for path in tmp_path.rglob("*/*") if path.is_file())
    assert max(groups.values()) == 2
    assert not uses.take("rule", limit=1)


def test_missing_folder_lets_no_rule_answer_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    uses = SharedUses(tmp_path / "removed" / "folder")
    assert not uses.take("rule", limit=1)
    assert not uses.take("rule", limit=1, scope="a")
    [record] = caplog.records
    assert "rules with `times` do not answer" in record.message
