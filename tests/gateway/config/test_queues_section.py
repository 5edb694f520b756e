"""The section `queues` of gateway.yaml: what contradicts it is refused, what has no effect is told."""

from __future__ import annotations

import pytest

from trimtab.errors import ConfigError
from trimtab.gateway.app.config_mapping import rules_of
from trimtab.gateway.config import parse_config

NODE = "nodes: [{name: a, url: 'http://x:1', models: [m], capacity: {requests: 4, gpu_gib: 80}}]\n"
KEYS = f"keys: [{{name: ana, sha256: [{'a' * 64}]}}]\n"
GOOD = "{research: {guarantee: 0.5, limit: {gpu_gib: 60, slots: 3}, tenants: [ana]}, default: {}}"


@pytest.mark.parametrize(
    ("queues", "told"),
    [
        ("{research: {tenants: [ana]}}", "'default' too, for tenants that no queue names"),
        ("{research: {tenants: [ana], limit: {gpus: 3}}, default: {}}", "'gpu_gib', 'slots'"),
        ("{research: {tenants: [ana], guarantee: 0.7}, default: {guarantee: 0.4}}", "they add up to 1.1"),
        ("{research: {tenants: [ana], guarantee: 0.7, limit: 0.5}, default: {}}", "at least its guarantee"),
        ("{research: {tenants: [ana], user_limit: 0}, default: {}}", "queues.research.user_limit"),
        ("{research: {tenants: [ana], notice_s: -1}, default: {}}", "queues.research.notice_s"),
        ("{research: {tenants: [ana], order: lifo}, default: {}}", "fifo"),
    ],
)
def test_what_contradicts_itself_is_refused(queues: str, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_config(f"{NODE}{KEYS}queues: {queues}\n", "gateway.yaml")
    assert "gateway.yaml" in str(refused.value)
    assert told in str(refused.value)


def test_the_rules_have_the_section() -> None:
    config = parse_config(f"{NODE}{KEYS}queues: {GOOD}\npolicy: best-fit+hdrf\n")
    section = rules_of(config).queues
    assert section is not None
    assert (section["research"].guarantee, list(section)) == (0.5, ["research", "default"])
    assert not any(note.startswith("queues") for note in config.policy_notes())


def test_what_has_no_effect_is_told() -> None:
    queues = GOOD.replace("ana", "anna")
    notes = parse_config(f"{NODE}{KEYS}queues: {queues}\npolicy: best-fit+drf\n").policy_notes()
    assert "queues.research.tenants.0: 'anna' has no key in this file: perhaps 'ana'" in notes
    assert any("read by NAME+hdrf only" in note for note in notes)
