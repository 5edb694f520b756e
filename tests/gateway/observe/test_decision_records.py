"""DecisionRecords tell the latest decision, of requests under way too, in bounded memory."""

from __future__ import annotations

import json

from support.decisions import make_decision
from support.gateway.observe_builders import make_exchange, make_node
from trimtab.gateway.model import Attempt, Cause, Outcome, Refusal
from trimtab.gateway.observe.decision_records import DecisionRecords


def test_a_receipt_tells_candidates_attempts_and_prediction() -> None:
    receipts = DecisionRecords(lambda: 102.5)
    exchange = make_exchange(make_node("b"), estimate_s=1.5, path="/v1/chat/completions?key=secret")
    exchange.attempts.insert(0, Attempt(make_node("a"), 100.1, ended_s=100.4, cause=Cause.CONNECT))
    exchange.decision = make_decision("jsq", ("b", "c"), (1.5, 1.8), (0, 3), decisions=2, shadow_idx=1)
    receipts.arrived(exchange)
    receipts.ended([exchange])
    found = receipts.find("r-1")
    assert found is not None
    assert (found["node"], found["wait_s"], found["predicted_s"], found["actual_s"]) == ("b", 0.5, 1.5, 2.0)
    assert (found["retries"], found["state"], found["path"]) == (1, "done", "/v1/chat/completions")
    assert found["decision"]["candidates"] == [
        {"node": "b", "scores": {"predicted_s": 1.5, "in_flight": 0, "prefix_tokens": 0.0}},
        {"node": "c", "scores": {"predicted_s": 1.8, "in_flight": 3, "prefix_tokens": 0.0}},
    ]
    assert found["decision"]["decisions"] == 2
    assert found["attempts"][0]["lost_by"] == "connect"
    assert found["decision"]["shadow"] == "c"
    assert "secret" not in json.dumps(found)


def test_a_request_under_way_is_found() -> None:
    receipts = DecisionRecords(lambda: 101.5)
    exchange = make_exchange(outcome=None)
    receipts.arrived(exchange)
    found = receipts.find("r-1")
    assert found is not None
    assert (found["state"], found["actual_s"], found["decision"]) == ("under way", None, None)


def test_a_refusal_has_a_receipt() -> None:
    receipts = DecisionRecords(lambda: 100.0)
    refusal = Refusal(503, "queue_full", "x")
    receipts.ended([make_exchange(attempts=[], refusal=refusal, outcome=Outcome.REFUSED, arrived_s=0.0)])
    found = receipts.find("r-1")
    assert found is not None
    assert (found["status"], found["refusal"], found["node"], found["total_s"]) == (
        503,
        "queue_full",
        None,
        None,
    )


def test_the_oldest_is_forgotten_and_repeated_ids_do_not_leak() -> None:
    receipts = DecisionRecords(lambda: 102.5, kept=3)
    for request_id in ("a", "same", "same", "b", "same", "c"):
        exchange = make_exchange(id=request_id)
        receipts.arrived(exchange)
        receipts.ended([exchange])
    assert receipts.find("a") is None
    assert all(receipts.find(known) for known in ("b", "same", "c"))
    for i in range(10):
        receipts.ended([make_exchange(id=str(i))])
    assert [i for i in range(10) if receipts.find(str(i))] == [7, 8, 9]
    assert receipts.find("same") is None
