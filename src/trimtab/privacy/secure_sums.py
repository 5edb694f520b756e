"""Sums of numbers that the one who adds them cannot read: homomorphic encryption by CKKS.

Sites share one secret key. Each encrypts its numbers; whoever holds the public key alone adds the ciphertexts
and cannot read them; sites decrypt the sum. Source: J. H. Cheon, A. Kim, M. Kim and Y. Song, "Homomorphic
Encryption for Arithmetic of Approximate Numbers", ASIACRYPT 2017, by TenSEAL (Microsoft SEAL) with 128 bits
of security: ring dimension 8192, a modulus of 180 bits (the standard's limit: 218), scale 2⁵⁶.

What a decrypted sum shows of its error tells of the secret key (B. Li and D. Micciancio, "On the Security of
Homomorphic Encryption on Approximate Numbers", EUROCRYPT 2021). So sums are rounded to multiples of `GRID`,
some 10⁶ times the error, before anyone sees them.

What it does not give: any site that holds the key reads what another site sent, if it gets hold of it. So
whoever adds must not be in league with a site, and updates travel over TLS. A sum of one site's numbers is
those numbers: each update counts itself in an encrypted 1, and `SumKey.decrypted` refuses sums of too few.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import UsageError
from trimtab.privacy.library import loaded

Floats = NDArray[np.float64]

DEGREE: Final = 8192
SLOTS: Final = DEGREE // 2  # numbers in one ciphertext
MODULUS_BITS: Final = (60, 60, 60)
SCALE: Final = 2.0**56
MOST: Final = 2.0**40  # greatest number that is encrypted: a thousand of them add up far below the modulus
GRID: Final = 2.0**-20
_KEY, _SUM = b"trimtab-ckks-key/1", b"trimtab-ckks-sum/1"
_CHUNK_MOST: Final = 1 << 19  # bytes of a ciphertext; a fresh one has 262 kB
_KEY_MOST: Final = 1 << 22
_HEADER_MOST: Final = 200
_KEY_FILE: Final = "a key of `trimtab federate keys`"


class Decrypted(NamedTuple):
    """A sum of updates, [numbers], and of how many."""

    values: Floats
    updates: int


class PublicKey:
    """Encrypts and adds; cannot decrypt."""

    def __init__(self, context: Any, fingerprint: str) -> None:
        self._context = context
        self.fingerprint: Final = fingerprint

    @classmethod
    def read(cls, path: Path) -> Self:
        """From a key file. Raises UsageError, MissingExtra."""
        try:
            with path.open("rb") as file:
                content = file.read(_KEY_MOST)
        except OSError as error:
            raise UsageError(
                f"can't be read: {error.strerror}", file=str(path), expected=_KEY_FILE
            ) from error
        return cls.parsed(content, str(path))

    @classmethod
    def parsed(cls, content: bytes, source: str) -> Self:
        """The public key of a key file, secret or public. Raises UsageError, MissingExtra."""
        return cls(*_parsed_key(content, source)[1:])

    def encrypted(self, values: Floats) -> bytes:
        """The numbers, [numbers], encrypted, with an encrypted 1 that counts the update.

        Raises UsageError for a number that is not finite or beyond `MOST`.
        """
        if not (np.abs(values) <= MOST).all():
            worst = values[~(np.abs(values) <= MOST)][0]
            raise UsageError("cannot be encrypted", value=float(worst), expected=f"a number within ±{MOST:g}")
        numbers = np.append(values, 1.0)
        chunks = [
            _tenseal().ckks_vector(self._context, numbers[begin : begin + SLOTS].tolist()).serialize()
            for begin in range(0, len(numbers), SLOTS)
        ]
        return self._content(len(values), chunks)

    def length(self, update: bytes) -> int:
        """How many numbers an encrypted update holds. Raises UsageError for what is none."""
        return self._vectors(update)[1]

    def summed(self, updates: Sequence[bytes]) -> bytes:
        """The encrypted sum of encrypted updates, at least one. Raises UsageError."""
        total, numbers = self._vectors(updates[0])
        for update in updates[1:]:
            vectors, others = self._vectors(update)
            if others != numbers:
                raise UsageError("has another length", value=others, expected=f"{numbers} numbers")
            total = [one + other for one, other in zip(total, vectors, strict=True)]
        return self._content(numbers, [vector.serialize() for vector in total])

    def _content(self, numbers: int, chunks: Sequence[bytes]) -> bytes:
        header = b"%s %s %d\n" % (_SUM, self.fingerprint.encode(), numbers)
        return header + b"".join(len(chunk).to_bytes(4, "big") + chunk for chunk in chunks)

    def _vectors(self, content: bytes) -> tuple[list[Any], int]:
        """Ciphertexts of an update, and how many numbers they hold."""
        line, end, rest = content[:_HEADER_MOST].partition(b"\n")
        words = line.split(b" ")
        if not end or len(words) != 3 or words[0] != _SUM or not words[2].isdigit():
            raise UsageError("is no encrypted update", expected=f"one that begins with {_SUM.decode()}")
        if words[1] != self.fingerprint.encode():
            given = words[1].decode("ascii", "replace")
            raise UsageError("was encrypted with another key", value=given, expected=self.fingerprint)
        numbers, rest = int(words[2]), content[len(line) + 1 :]
        vectors: list[Any] = []
        for _ in range(math.ceil((numbers + 1) / SLOTS)):
            size = int.from_bytes(rest[:4], "big")
            if not 0 < size <= min(_CHUNK_MOST, len(rest) - 4):
                raise UsageError("is an encrypted update that is cut off", expected=f"{numbers} numbers")
            slots = min(SLOTS, numbers + 1 - SLOTS * len(vectors))
            vectors.append(self._vector(rest[4 : 4 + size], slots))
            rest = rest[4 + size :]
        if rest:
            raise UsageError("has more than its numbers", value=len(rest), expected="no byte behind them")
        return vectors, numbers

    def _vector(self, content: bytes, slots: int) -> Any:
        try:
            vector = _tenseal().ckks_vector_from(self._context, content)
        except (ValueError, RuntimeError) as error:
            raise UsageError(f"is no ciphertext: {error}", expected="one made by TenSEAL") from error
        kinds = [(text.scale, text.size(), text.coeff_modulus_size()) for text in vector.ciphertext()]
        if vector.size() != slots or kinds != [(SCALE, 2, len(MODULUS_BITS) - 1)]:
            raise UsageError("is a ciphertext of another kind", expected=f"{slots} numbers at scale 2^56")
        return vector


class SumKey(PublicKey):
    """Decrypts as well: the key of the sites."""

    @classmethod
    def parsed(cls, content: bytes, source: str) -> Self:
        """The secret key of a key file. Raises UsageError, MissingExtra."""
        secret, context, fingerprint = _parsed_key(content, source)
        if not secret:
            raise UsageError("is a public key", file=source, expected="the secret key of the sites")
        return cls(context, fingerprint)

    def decrypted(self, content: bytes, at_least: int) -> Decrypted:
        """A sum, rounded to `GRID`. Raises UsageError if fewer than `at_least` updates are in it."""
        vectors, _ = self._vectors(content)
        found = np.concatenate([np.array(vector.decrypt()) for vector in vectors])
        count = found[-1]
        if not abs(count - round(count)) < GRID or not 0 < count <= MOST:
            raise UsageError("cannot be read", expected="a sum of updates encrypted with this key alone")
        if round(count) < at_least:
            expected = f"{at_least} or more: fewer would show what single sites sent"
            raise UsageError("is a sum of too few updates", value=round(count), expected=expected)
        return Decrypted(np.round(found[:-1] / GRID) * GRID, round(count))


def encrypted_bytes(numbers: int) -> int:
    """Bytes of so many numbers encrypted, at most."""
    return _HEADER_MOST + math.ceil((numbers + 1) / SLOTS) * _CHUNK_MOST


def new_keys() -> tuple[bytes, bytes]:
    """New keys, from the operating system's generator: the sites' secret one, and the public one."""
    ts = _tenseal()
    context = ts.context(ts.SCHEME_TYPE.CKKS, DEGREE, coeff_mod_bit_sizes=list(MODULUS_BITS))
    context.global_scale = SCALE
    parts = {"save_galois_keys": False, "save_relin_keys": False}
    public = context.serialize(save_secret_key=False, **parts)
    secret = context.serialize(save_secret_key=True, **parts)
    fingerprint = hashlib.sha256(public).hexdigest()[:32].encode()
    header = b"%s %s %s\n"
    return header % (_KEY, b"secret", fingerprint) + secret, header % (_KEY, b"public", fingerprint) + public


def _parsed_key(content: bytes, source: str) -> tuple[bool, Any, str]:
    """Whether a key is secret, its context, and the fingerprint of its public part."""
    line, end, rest = content.partition(b"\n")
    words = line.split(b" ")
    if not end or len(words) != 3 or words[0] != _KEY or words[1] not in (b"secret", b"public"):
        raise UsageError("is no key", file=source, expected=_KEY_FILE)
    try:
        context = _tenseal().context_from(rest)
    except (ValueError, RuntimeError) as error:
        raise UsageError(f"is no key: {error}", file=source, expected=_KEY_FILE) from error
    if context.is_private() != (words[1] == b"secret") or context.global_scale != SCALE:
        raise UsageError("is a key of another kind than it says", file=source, expected=_KEY_FILE)
    return words[1] == b"secret", context, words[2].decode("ascii", "replace")


def _tenseal() -> Any:
    return loaded("tenseal", "encrypted sums need TenSEAL")
