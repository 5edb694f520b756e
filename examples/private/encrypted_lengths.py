"""A vendor expects output lengths of prompts that it cannot see: a linear estimate on encrypted features.

    python examples/private/encrypted_lengths.py learned.safetensors 120 900 4000

The site encrypts what its prompts have of each knot of the learned curve, a ciphertext a knot for up to 4,096
prompts; the vendor has the curve, multiplies and adds; the site decrypts. Both are one process here. A lookup
in the open takes a microsecond: this sends 7 MB and computes for tenths of a second, be it for one prompt.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import tenseal as ts

from trimtab.domain.learned_estimates import KNOTS, LearnedEstimates, place

DEGREE, SCALE = 8192, 2.0**40


def features(prompts: list[float]) -> np.ndarray:
    """What of each knot each prompt has, [KNOTS, prompts]."""
    found = np.zeros((KNOTS, len(prompts)))
    for row, prompt in enumerate(prompts):
        below, part = place(prompt)
        found[below, row], found[below + 1, row] = 1.0 - part, part
    return found


def expected(curve: np.ndarray, prompts: list[float]) -> tuple[np.ndarray, dict[str, float]]:
    """Expected output tokens, [prompts], and what that cost: kB sent, milliseconds on each side."""
    site = ts.context(ts.SCHEME_TYPE.CKKS, DEGREE, coeff_mod_bit_sizes=[60, 40, 60])
    site.global_scale = SCALE
    begun_s = time.perf_counter()
    knots = [ts.ckks_vector(site, row.tolist()).serialize() for row in features(prompts)]
    encrypted_s = time.perf_counter() - begun_s
    public = site.serialize(save_secret_key=False, save_galois_keys=False, save_relin_keys=False)

    vendor, begun_s = ts.context_from(public), time.perf_counter()
    parts = [ts.ckks_vector_from(vendor, each) for each in knots]
    total = parts[0] * float(curve[0])
    for part, tokens in zip(parts[1:], curve[1:], strict=True):
        total += part * float(tokens)
    answer = total.serialize()
    vendor_s = time.perf_counter() - begun_s

    begun_s = time.perf_counter()
    tokens = np.array(ts.ckks_vector_from(site, answer).decrypt())
    cost = {
        "prompts": len(prompts),
        "sent_kb": (len(public) + sum(map(len, knots)) + len(answer)) / 1000.0,
        "site_ms": 1000.0 * (encrypted_s + time.perf_counter() - begun_s),
        "vendor_ms": 1000.0 * vendor_s,
    }
    return tokens, cost


def main(file: str, *given: str) -> None:
    """Print what is expected of each prompt, encrypted and in the open."""
    learned, prompts = LearnedEstimates.read(file), [float(text) for text in given]
    tokens, cost = expected(learned.lengths[0], prompts)
    in_the_open = learned.lengths[0] @ features(prompts)
    for prompt, found, plain in zip(prompts, tokens, in_the_open, strict=True):
        print(
            f"{prompt:>8.0f} prompt tokens: {found:10.3f} output tokens expected, {plain:10.3f} in the open"
        )
    print(", ".join(f"{key} {value:,.1f}" for key, value in cost.items()))


if __name__ == "__main__":
    main(*sys.argv[1:])
