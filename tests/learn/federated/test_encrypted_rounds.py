"""Encrypted federations learn what plain ones do, and their server holds nothing that it can read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from learn.federated.test_federation_rounds import SITES, Numbers, Towards
from trimtab.domain.artifact import Artifact
from trimtab.errors import UsageError
from trimtab.learn.federated.aggregation import Rule, Update
from trimtab.learn.federated.encrypted_rounds import EncryptedFederation, SealedSite
from trimtab.learn.federated.rounds import Federation, Terms, learned_together
from trimtab.privacy.secure_sums import PublicKey, SumKey, new_keys


class Weighted(Towards):
    """Counts for as many rows as its number says, and one."""

    def answer(self, ask: Artifact) -> Update:
        return Update(super().answer(ask).values, np.array([0.0, 1.0, 100.0]) * (1.0 + self.number))


@pytest.fixture(scope="module")
def keys() -> tuple[bytes, bytes]:
    return new_keys()


@pytest.fixture(scope="module")
def site_key(keys: tuple[bytes, bytes]) -> SumKey:
    return SumKey.parsed(keys[0], "sites.key")


def server(keys: tuple[bytes, bytes], **terms: Any) -> EncryptedFederation:
    terms = {"sites_min": 3, **terms}
    return EncryptedFederation(Numbers(), Terms(SITES, **terms), PublicKey.parsed(keys[1], "server.key"))


def answer(made: EncryptedFederation, sealed: SealedSite, name: str) -> str:
    content = sealed.answer(Weighted(float(SITES.index(name))), made.ask(), made.identity)
    return made.take(name, made.number, content)


def test_it_learns_what_a_plain_federation_learns(keys: tuple[bytes, bytes], site_key: SumKey) -> None:
    rule = Rule(rows_max=250.0)
    made = server(keys, rule=rule)
    sealed = SealedSite.of(Numbers(), made.told()["sums"], site_key)
    while not made.is_over:
        for name in made.drawn():
            assert answer(made, sealed, name) == ""
        made.end_round()
    plain = learned_together(
        Federation(Numbers(), Terms(SITES, rule)), {name: Weighted(float(k)) for k, name in enumerate(SITES)}
    )
    found = np.frombuffer(sealed.result(made.result()[1])[1])
    np.testing.assert_allclose(found, np.frombuffer(plain.result()[1]), atol=1e-5)
    assert found[0] == 0.0  # no rows


def test_a_server_goes_on_from_its_checkpoint(keys: tuple[bytes, bytes], site_key: SumKey) -> None:
    made = server(keys)
    sealed = SealedSite.of(Numbers(), made.told()["sums"], site_key)
    for name in SITES:
        answer(made, sealed, name)
    made.end_round()
    answer(made, sealed, "a")
    again = server(keys)
    again.restore(made.checkpoint(), "federation.safetensors")
    for name in ("b", "c", "d"):
        assert answer(made, sealed, name) == answer(again, sealed, name) == ""
    for each in (made, again):
        each.end_round()
        assert sealed.key.decrypted(each.history[1].values.tobytes(), at_least=4).updates == 4
    assert again.history[0].values.tobytes() == made.history[0].values.tobytes()


def test_a_site_is_sent_the_sums_that_it_does_not_know(keys: tuple[bytes, bytes], site_key: SumKey) -> None:
    made = server(keys)
    sealed = SealedSite.of(Numbers(), made.told()["sums"], site_key)
    for known in range(3):
        asked = made.ask(known=max(0, known - 1))
        assert len(asked.arrays) == min(known, 1)
        content = sealed.answer(Towards(1.0), asked, made.identity)
        assert len(sealed.history) == known
        for name in SITES:
            assert made.take(name, made.number, content) == ""
        made.end_round()
    late = SealedSite.of(Numbers(), made.told()["sums"], site_key)
    late.answer(Towards(1.0), made.ask(), made.identity)
    assert len(late.history) == 3


def test_a_checkpoint_of_another_key_is_refused(keys: tuple[bytes, bytes]) -> None:
    made, other = server(keys), server(new_keys())
    plain = Federation(Numbers(), made.terms)
    for content in (other.checkpoint(), plain.checkpoint()):
        with pytest.raises(UsageError, match="terms: is of another federation"):
            made.restore(content, "federation.safetensors")


def test_what_the_server_holds_is_ciphertext(keys: tuple[bytes, bytes], site_key: SumKey) -> None:
    """No number of a site stands in what it keeps, and the key that it has opens nothing."""
    made = server(keys)
    sealed = SealedSite.of(Numbers(), made.told()["sums"], site_key)
    secret = Towards(123.456)
    content = sealed.answer(secret, made.ask(), made.identity)
    assert made.take("a", 1, content) == ""
    held = made.checkpoint() + content
    for value in (123.456, 123.456 / 2.0):
        assert np.float64(value).tobytes() not in held
    with pytest.raises(UsageError, match="is a public key"):
        SumKey.parsed(keys[1], "server.key")


def test_sites_refuse_sums_of_few(keys: tuple[bytes, bytes], site_key: SumKey) -> None:
    """Even where the server says that fewer are enough."""
    made = server(keys, sites_min=2)
    sealed = SealedSite.of(Numbers(), made.told()["sums"], site_key)
    for name in ("a", "b"):
        answer(made, sealed, name)
    made.end_round()
    with pytest.raises(UsageError, match=r"sum of too few updates \(got 2\); expected 3 or more"):
        sealed.answer(Towards(1.0), made.ask(), made.identity)


def test_garbage_and_other_keys_are_refused_by_name(keys: tuple[bytes, bytes], site_key: SumKey) -> None:
    made = server(keys)
    other = SumKey.parsed(new_keys()[0], "another")
    told = made.told()["sums"]
    with pytest.raises(UsageError, match="--sum-key: is not the key of this federation"):
        SealedSite.of(Numbers(), told, other)
    wrong = SealedSite(Numbers(), other, Rule(), 3)
    assert "with another key" in answer(made, wrong, "a")
    for held in (np.zeros(5, np.uint8), np.frombuffer(site_key.encrypted(np.zeros(5)), np.uint8)):
        content = Artifact("update", {"encrypted": held}, {"identity": made.identity}).content()
        assert made.take("b", 1, content) != ""
    assert set(made.refused) == {"a", "b"}
    assert made.waited_for() == ("c", "d")
