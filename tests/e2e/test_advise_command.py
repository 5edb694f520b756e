"""`trimtab advise`: an answer in words for a trace on a cluster."""

from __future__ import annotations

import json

from support.e2e_files import write_cluster, write_trace


def test_words_and_json_have_the_same_sentences(cli, tmp_path):
    arguments = [write_trace(tmp_path / "t.csv"), write_cluster(tmp_path / "c.yaml"), "--jobs", 1]
    policies = ["--policy", "late-binding", "--policy", "round-robin"]
    words = cli("advise", *arguments, *policies)
    assert words.exit_code == 0, words.stderr
    told = json.loads(cli("advise", *arguments, *policies, "--json").stdout)
    for topic, sentences in told["advice"].items():
        assert topic in words.stdout
        for sentence in sentences:
            assert sentence in words.stdout
    assert "late-binding has the best" in words.stdout
    assert "defaults for this format" in words.stdout  # the cluster has no service times


def test_a_trace_without_a_cluster_is_refused(cli, tmp_path):
    done = cli("advise", write_trace(tmp_path / "t.csv"))
    assert done.exit_code == 2
    assert "cluster" in done.stderr
