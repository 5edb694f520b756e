"""Encrypted sums are the sums, and nobody without the sites' key reads them."""

from __future__ import annotations

import numpy as np
import pytest

from trimtab.errors import UsageError
from trimtab.privacy.secure_sums import GRID, MOST, SLOTS, PublicKey, SumKey, new_keys


@pytest.fixture(scope="module")
def keys() -> tuple[bytes, bytes]:
    return new_keys()


@pytest.fixture(scope="module")
def sites(keys) -> SumKey:
    return SumKey.parsed(keys[0], "sites.key")


@pytest.fixture(scope="module")
def server(keys) -> PublicKey:
    return PublicKey.parsed(keys[1], "server.key")


@pytest.mark.parametrize("numbers", [1, SLOTS - 1, SLOTS, SLOTS + 1])
def test_a_decrypted_sum_is_the_sum(sites, server, numbers):
    draw = np.random.default_rng(numbers)
    updates = [draw.normal(size=numbers) * scale for scale in (1e-3, 1.0, 1e6)]
    found = sites.decrypted(server.summed([sites.encrypted(u) for u in updates]), at_least=3)
    assert found.updates == 3
    assert np.abs(found.values - np.sum(updates, axis=0)).max() <= 0.51 * GRID


def test_the_error_beneath_the_grid_is_far_below_it(sites):
    """Rounding hides the error, which tells of the key, only if it hardly ever changes what is rounded to."""
    values = (np.arange(SLOTS - 1) % 1000) * GRID
    found = sites.decrypted(sites.summed([sites.encrypted(values)] * 5), at_least=5).values
    assert (found == 5 * values).all()


def test_sums_of_sums_count_all_updates(sites, server):
    part = server.summed([server.encrypted(np.ones(3))] * 2)
    assert sites.decrypted(server.summed([part, part]), at_least=4).updates == 4


def test_two_encryptions_of_one_update_differ(server):
    assert server.encrypted(np.ones(4)) != server.encrypted(np.ones(4))


def test_a_sum_of_too_few_updates_is_not_shown(sites, server):
    with pytest.raises(UsageError, match=r"sum of too few updates \(got 2\); expected 3 or more"):
        sites.decrypted(server.summed([server.encrypted(np.ones(2))] * 2), at_least=3)


def test_who_adds_cannot_decrypt(keys, server):
    """All that a curious aggregator holds: the public key and the ciphertexts."""
    import tenseal

    with pytest.raises(UsageError, match="public key; expected the secret key"):
        SumKey.parsed(keys[1], "server.key")
    encrypted = server.encrypted(np.full(5, 42.0))
    public = tenseal.context_from(keys[1].partition(b"\n")[2])
    vector = tenseal.ckks_vector_from(public, encrypted.partition(b"\n")[2][4:])
    with pytest.raises(ValueError, match="doesn't hold a secret_key"):
        vector.decrypt()
    guess = SumKey.parsed(new_keys()[0], "another")  # of the same parameters
    forged = guess.encrypted(np.zeros(1)).partition(b" ")[0] + b" " + guess.fingerprint.encode() + b" 5\n"
    with pytest.raises(UsageError, match="cannot be read"):
        guess.decrypted(forged + encrypted.partition(b"\n")[2], at_least=1)


def test_another_key_is_refused_by_fingerprint(sites, server):
    other = PublicKey.parsed(new_keys()[1], "other")
    with pytest.raises(UsageError, match=f"with another key .* expected {sites.fingerprint}"):
        server.summed([server.encrypted(np.ones(2)), other.encrypted(np.ones(2))])


@pytest.mark.parametrize("value", [np.nan, np.inf, -2.0 * MOST])
def test_numbers_beyond_what_can_be_added_are_refused(server, value):
    with pytest.raises(UsageError, match="cannot be encrypted"):
        server.encrypted(np.array([1.0, value]))


def test_what_is_no_key_is_refused(keys):
    for content in (b"", b"abc\n", keys[0][:5000], keys[1].replace(b"public", b"secret", 1)):
        with pytest.raises(UsageError, match=r"some file: is (no key|a key of another kind)"):
            SumKey.parsed(content, "some file")


def test_what_is_no_update_is_refused(server):
    whole = server.encrypted(np.ones(2))
    short, header = server.encrypted(np.ones(1)), whole.partition(b"\n")[0] + b"\n"
    noise = np.random.default_rng(0).bytes(5000)
    for content in (
        b"",
        b"hello\n",
        whole[:-1],
        whole + b"x",
        header + b"\xff" * 60,
        header + len(noise).to_bytes(4, "big") + noise,
        header + short.partition(b"\n")[2],
        whole.replace(b" 2\n", b" 99999999999999\n", 1),
    ):
        with pytest.raises(UsageError):
            server.summed([content])
    with pytest.raises(UsageError, match=r"another length \(got 1\); expected 2 numbers"):
        server.summed([whole, short])


def test_a_ciphertext_of_another_scale_is_no_update(keys, server):
    """It would spoil the sum of all."""
    import tenseal

    context = tenseal.context_from(keys[1].partition(b"\n")[2])
    header = server.encrypted(np.ones(2)).partition(b"\n")[0]
    vector = tenseal.ckks_vector(context, [1.0, 1.0, 1.0], 2.0**30).serialize()
    with pytest.raises(UsageError, match="another kind"):
        server.summed([header + b"\n" + len(vector).to_bytes(4, "big") + vector])
