"""docs/benchmarks/private-learning.md from bench/private-learning.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bench.page import markdown_table
from trimtab.metrics import mean_ci95

HEAD = """<!-- Made by `python -m bench.private_learning` from what it measured; `--docs` writes it anew. -->

# Encrypted sums and private training

What it costs that a server of a federation adds updates that it cannot read, and that a file of learned lengths tells next to nothing of any one row
([Learn together](../guides/learn-together.md)).
"""
SUMS = """
## Encrypted sums

CKKS with 128 bits of security, by TenSEAL: five updates of so many normal numbers. CPU milliseconds, each the median of five. *Error*: the largest
difference of a decrypted sum from the sum; half a step of the grid that sums are rounded to is 4.8e-7. Keys: the sites' {secret:.0f} kB, the server's
{public:.0f} kB. An update of `trimtab federate` has two numbers for each that is learned.
"""
INFERENCE = """
## Encrypted inference

`examples/private/encrypted_lengths.py`: a vendor has the curve, a site its prompts, and neither shows the other what it has. A lookup in the open takes about a
microsecond and sends nothing. Milliseconds as they passed, with what else the machine did.
"""
ACCURACY = """
## Private training

`trimtab learn lengths` (DP-SGD by Opacus, δ = 1e-5, by row) on rows of the first half of the Azure conversation trace: mean |expected − true output tokens| of
the second half, over its mean output. ± half the width of the 95 % interval over five samples of rows. One length for all prompts, the mean of the first half,
errs by {constant:.3f}. *In the open*: what `trimtab federate` learns from the same rows. *ε = ∞*: the same descent without noise. A tenth of ε and δ
goes to the number of rows behind each knot.
"""


def page(figures: Mapping[str, Any]) -> str:
    """The whole page."""
    on, sums = figures["machine"], figures["sums"]
    where = (
        f"Measured on {on['cpu']}, {on['cores']} cores, {on['system']}; load average {on['load_average']}.\n"
    )
    sizes = [
        (
            f"{int(size):,}",
            f"{row['kb']:,.0f}",
            f"{row['plain_kb']:,.1f}",
            f"{row['encrypt_ms']:.1f}",
            f"{row['add_ms']:.1f}",
            f"{row['decrypt_ms']:.1f}",
            f"{row['error']:.1e}",
        )
        for size, row in sums["sizes"].items()
    ]
    head = ("numbers", "kB", "kB in the open", "encrypt ms", "add ms", "decrypt ms", "error")
    costs = [
        (f"{row['prompts']:,.0f}", *(f"{row[key]:,.0f}" for key in ("sent_kb", "site_ms", "vendor_ms")))
        for row in figures["inference"]
    ]
    parts = [
        HEAD,
        where,
        SUMS.format(secret=sums["secret_kb"], public=sums["public_kb"]),
        markdown_table(head, sizes),
        INFERENCE,
        markdown_table(("prompts", "kB sent", "ms at the site", "ms at the vendor"), costs),
    ]
    if "accuracy" in figures:
        parts += [ACCURACY.format(constant=figures["accuracy"]["constant"]), _accuracy(figures["accuracy"])]
    return "\n".join(parts)


def _accuracy(found: Mapping[str, Any]) -> str:
    rows = found["rows"]
    labels = next(iter(rows.values()))
    head = (
        "rows",
        *(label if label == "in the open" else f"ε = {label.replace('inf', '∞')}" for label in labels),
    )
    return markdown_table(
        head, [(f"{int(n):,}", *(_cell(errors[label]) for label in labels)) for n, errors in rows.items()]
    )


def _cell(errors: Sequence[float]) -> str:
    interval = mean_ci95(np.array(errors))
    return f"{interval.mean:.3f} ± {interval.ci95:.3f}"
