"""Five sites that may not share their traces learn together, and one of them shares a synthetic trace.

    python examples/private/sites.py OUT

Real processes on this machine: a server that adds encrypted updates, five clients with the sites' key, then
`trimtab trace share` with its check. OUT/private.html tells what came of it. It needs serve and private.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import yaml

from trimtab.domain.learned_estimates import LearnedEstimates
from trimtab.gateway.config import digest_of
from trimtab.report.fragments import grouped_rows, notes, section
from trimtab.report.page import Page, html_of
from trimtab.report.whole_files import write_text

TRIMTAB = (sys.executable, "-m", "trimtab")
FLEET = {
    "cluster": {
        "types": {
            "fast": {"memory_gib": 80, "speed": 1.5, "slots": 16},
            "slow": {"memory_gib": 80, "speed": 1.0, "slots": 8},
        },
        "nodes": [{"type": "fast", "count": 2}, {"type": "slow", "count": 4}],
    },
    "classes": {"chat": {"fixed_s": 0.05, "unit_s": 0.045}},
    "workload": {"trace": {"file": "hospital.csv"}, "load": 0.85},
    "policies": ["round-robin", "least-connections", "least-expected-wait", "late-binding"],
}
SITES = {"hospital": 0.6, "bank": 0.9, "studio": 1.0, "school": 1.2, "shop": 1.6}  # level of output lengths
ROWS, LATER = 1_500, 1_500
EPSILON = 1.0


def write_site(folder: Path, name: str, seed: int) -> pl.DataFrame:
    """The site's history as a trace; returns what comes later."""
    draw, n = np.random.default_rng(seed), ROWS + LATER
    prompt = 16 + draw.lognormal(6.0 + 0.3 * draw.normal(), 1.0, n).astype(np.int64)
    output = SITES[name] * draw.gamma(3.0, 1.0 / 3.0, n) * (40.0 + 0.2 * prompt)
    columns = {
        "arrival_s": np.cumsum(draw.exponential(0.25, n)),
        "prompt_tokens": prompt,
        "output_tokens": np.clip(output, 1, 4_000).astype(np.int64),
        "tenant": [f"{name}-{k}" for k in draw.integers(0, 20, n)],
    }
    table = pl.DataFrame(columns)
    table[:ROWS].write_csv(folder / f"{name}.csv")
    return table[ROWS:]


def learn(folder: Path) -> None:
    """Run the server and the clients to their end."""
    subprocess.run([*TRIMTAB, "federate", "keys", "--out", "keys"], cwd=folder, check=True)
    config = {
        "listen": "127.0.0.1:0",
        "sites": [{"name": name, "sha256": digest_of(name.encode())} for name in SITES],
        "learn": {"estimates": {"rounds": 10}},
        "aggregation": {"sum_key": "keys/server.key"},
        "rounds": {"sites_min": 3},
    }
    (folder / "federation.yaml").write_text(yaml.safe_dump(config))
    command = [*TRIMTAB, "federate", "server", "federation.yaml", "--out", "federation"]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        found = re.search(r"http://\S+:\d+", line := server.stderr.readline())
        if found is None:
            sys.exit(line + server.stderr.read())
        clients = [
            subprocess.Popen(
                [
                    *(*TRIMTAB, "federate", "client", f"{name}.csv", "--server", found[0], "--quiet"),
                    *("--key-env", "SITE_KEY", "--sum-key", "keys/sites.key", "--out", name),
                ],
                cwd=folder,
                env={**os.environ, "SITE_KEY": name},
            )
            for name in SITES
        ]
        for line in server.stderr:
            print(line, end="", flush=True)
        if any(client.wait() for client in clients):
            sys.exit("a client failed")


def share(folder: Path) -> tuple[dict, dict]:
    """Share the first site's trace; its report, and the check that stays with the site."""
    name = next(iter(SITES))
    (folder / "fleet.yaml").write_text(yaml.safe_dump(FLEET))
    subprocess.run(
        [
            *(*TRIMTAB, "trace", "share", f"{name}.csv", "--out", "shared.csv", "--epsilon", f"{EPSILON:g}"),
            *("--ledger", "ledger.json", "--check", "fleet.yaml", "--seeds", "1"),
        ],
        cwd=folder,
        check=True,
    )
    return tuple(json.loads((folder / f"shared.{part}.json").read_text()) for part in ("share", "check"))


def error(learned: LearnedEstimates, later: pl.DataFrame) -> float:
    """Mean |expected − true output tokens| over the mean output."""
    curve, output = learned.length("*"), later["output_tokens"].to_numpy()
    assert curve is not None
    found = np.array([curve.at(float(prompt)) for prompt in later["prompt_tokens"]])
    return float(np.abs(found - output).mean() / output.mean())


def main(out: str) -> None:
    """Run all of it and write the page."""
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    later = {name: write_site(folder, name, seed) for seed, name in enumerate(SITES)}
    learn(folder)
    shared, checked = share(folder)
    errors = {
        name: [
            (
                title,
                f"{100 * error(LearnedEstimates.read(str(folder / name / file)), rows):.1f}",
                "% of the mean",
            )
            for title, file in (
                ("learned by all", "learned.safetensors"),
                ("and moved by own rows", "own.safetensors"),
            )
        ]
        for name, rows in later.items()
    }
    sums = (folder / "federation" / "sums.safetensors").stat().st_size
    decisions = [
        ("policies compared", str(checked["policies"]), ""),
        ("Kendall's τ of their order by the mean", f"{checked['mean_tau']:.2f}", ""),
        ("best on the recording", checked["best"][0], ""),
        ("best on the shared trace", checked["best"][1], ""),
        ("what that choice costs on the recording", f"{100 * checked['regret_frac']:.1f}", "% of the mean"),
    ]
    promise = [
        (
            "ε, δ",
            f"{shared['promise']['epsilon']:g}, {shared['promise']['delta']:g}",
            shared["promise"]["unit"],
        ),
        ("requests in the shared trace", f"{shared['requests']:,}", ""),
    ]
    body = notes(
        [
            f"The server wrote {sums:,} bytes of ciphertext and can read none of them.",
            "The check was computed on the recording itself: it stays with its owner, and so does this page.",
        ]
    )
    body += section(
        "errors",
        "Errors of expected output lengths",
        "On each site's next requests.",
        grouped_rows(errors, {}),
    )
    body += section(
        "shared", "A shared trace", "", grouped_rows({"Promise": promise, "Decisions": decisions}, {})
    )
    lead = f"{len(SITES)} sites, {ROWS:,} rows each: what they learned together, and what one of them shares."
    page = write_text(
        folder / "private.html", html_of(Page("Learned together, shared in private", lead, {}, body, {}))
    )
    print(f"the page: {page.absolute()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
