"""The ledger frees a GPU only once the job that was promised it follows a lower number, and no longer holds it."""

from __future__ import annotations

import json

from elastic_launcher.quota.rounds.ledger import Account, Ledger, ledger_of, settle
from tests.support.quota_jobs import job

OWNERS = {"job": "nlp"}
NOW = 20.0
SHRUNK = Ledger(7, {"job": Account("nlp", 2, 4, 7, held=4, reported_at=10.0, reclaim_by=40.0)})


def test_a_job_that_was_never_promised_anything_is_taken_over_with_what_it_holds_and_may_follow() -> None:
    account = settle(Ledger(), [job("job", held=2, following=3)], OWNERS, NOW, NOW).accounts["job"]
    assert (account.allowed, account.committed) == (2, 3)


def test_a_job_without_an_account_can_not_claim_to_follow_a_hint_that_was_never_given() -> None:
    account = settle(
        Ledger(7, {"other": Account("nlp", 1, 1, 7)}), [job("job", following=4)], OWNERS, NOW, NOW
    ).accounts["job"]
    assert (account.allowed, account.committed) == (0, 0)


def test_a_lower_number_frees_nothing_before_the_job_follows_it() -> None:
    late = job("job", held=2, following=4, following_generation=6, reported_at=11.0)
    assert settle(SHRUNK, [late], OWNERS, NOW, NOW).accounts["job"].committed == 4


def test_a_job_that_follows_a_lower_number_is_committed_to_what_it_still_holds() -> None:
    leaving = job("job", held=3, following=2, following_generation=7, reported_at=11.0)
    after = settle(SHRUNK, [leaving], OWNERS, NOW, NOW)
    assert (after.accounts["job"].committed, after.accounts["job"].reclaim_by) == (3, 40.0)
    gone = job("job", held=2, following=2, following_generation=7, reported_at=12.0)
    assert settle(after, [gone], OWNERS, NOW, NOW).accounts["job"].reclaim_by is None


def test_a_number_of_a_later_document_counts_if_it_is_the_same() -> None:
    later = job("job", held=2, following=2, following_generation=9, reported_at=11.0)
    assert settle(SHRUNK, [later], OWNERS, NOW, NOW).accounts["job"].committed == 2


def test_a_report_that_is_older_than_one_that_was_seen_changes_nothing() -> None:
    old = job("job", held=1, following=2, following_generation=7, reported_at=9.0)
    assert settle(SHRUNK, [old], OWNERS, NOW, NOW).accounts["job"].committed == 4


def test_a_job_that_follows_a_number_that_it_can_not_use_is_committed_to_what_it_uses_of_it() -> None:
    paused = Ledger(7, {"job": Account("nlp", 0, 4, 7, held=4, reported_at=10.0)})
    by_hand = job("job", least=3, following=2, following_generation=8, reported_at=11.0)
    assert settle(paused, [by_hand], OWNERS, NOW, NOW).accounts["job"].committed == 0


def test_a_job_is_overdue_from_the_end_of_its_grace_until_it_has_given_its_gpus_back() -> None:
    deaf = job("job", held=4, reported_at=11.0)
    assert not settle(SHRUNK, [deaf], OWNERS, 39.0, NOW).accounts["job"].overdue
    late = settle(SHRUNK, [deaf], OWNERS, 40.0, NOW)
    assert late.accounts["job"].overdue
    cut = Ledger(8, {"job": late.accounts["job"].change(1, 8, 41.0, "", 71.0)})
    again = settle(cut, [deaf], OWNERS, 42.0, NOW).accounts["job"]
    assert (again.committed, again.kept) == (4, late.accounts["job"].kept), "what it is cut by now has its own grace"
    obeys = job("job", held=1, following=1, following_generation=8, reported_at=43.0)
    assert not settle(cut, [obeys], OWNERS, 44.0, NOW).accounts["job"].overdue


def test_a_job_whose_growth_is_taken_back_again_and_again_waits_longer_each_time() -> None:
    account, now, waits = Account("nlp", 2, 2, 1), 0.0, []
    for number in range(9):
        account = account.change(4, number, now, "", None)
        assert account.is_restless == (number >= 3)
        account = account.change(2, number, now + 599.0, "", None)
        grows_from = account.grows_from(60.0)
        assert grows_from is not None
        waits.append(grows_from - now - 599.0)
        now = grows_from
    assert waits == [60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 3840.0, 3840.0, 3840.0]
    account = account.change(4, 9, now, "", None).change(2, 9, now + 600.0, "", None)
    assert (account.grows_from(60.0), account.is_restless) == (now + 660.0, False), "that growth has lasted"


def test_a_job_that_never_shrank_grows_at_once() -> None:
    assert Account("nlp", 2, 2, 1).change(4, 2, 5.0, "", None).grows_from(60.0) is None


def test_a_job_that_is_over_or_gone_is_promised_nothing() -> None:
    over = job("job", finished=True, reported_at=11.0)
    account = settle(SHRUNK, [over], OWNERS, NOW, NOW).accounts["job"]
    assert (account.allowed, account.committed) == (0, 0)
    assert settle(SHRUNK, [], OWNERS, NOW, NOW).accounts == {}


def test_a_ledger_is_the_same_after_it_was_stored() -> None:
    found = ledger_of(json.loads(json.dumps(SHRUNK.as_json())))
    assert (found.generation, dict(found.accounts)) == (7, dict(SHRUNK.accounts))


def test_controllers_before_and_after_this_one_can_read_its_ledger() -> None:
    written = SHRUNK.as_json()
    assert not {"overdue", "note"} & written["accounts"]["job"].keys(), (
        "an earlier one refuses fields that it does not know"
    )
    written["accounts"]["job"]["of_a_later_one"] = 1
    assert ledger_of(written) == SHRUNK
