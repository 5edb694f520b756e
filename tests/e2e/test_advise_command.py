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


def test_objectives_say_which_policies_meet_them(cli, tmp_path):
    arguments = [write_trace(tmp_path / "t.csv"), write_cluster(tmp_path / "c.yaml"), "--jobs", 1]
    policies = ["--policy", "late-binding", "--policy", "round-robin"]
    slo = ["--slo", "completion_p99<10000s, completion_mean<0.001ms"]
    done = cli("advise", *arguments, *policies, *slo)
    assert done.exit_code == 0, done.stderr
    assert "completion_p99_s<10000: met by " in done.stdout
    assert "completion_mean_s<1e-06: met by no policy; nearest is " in done.stdout
    told = json.loads(cli("advise", *arguments, *policies, *slo, "--json").stdout)
    assert sorted(told["met_by"]["completion_p99_s<10000"]) == ["late-binding", "round-robin"]
    assert told["met_by"]["completion_mean_s<1e-06"] == []
    refused = cli("advise", *arguments, "--slo", "ttft_p98<1s")
    assert refused.exit_code == 2
    assert "--slo: no such metric" in refused.stderr


def test_objectives_of_tokens_need_a_node_that_serves_them(cli, tmp_path):
    trace, cluster = write_trace(tmp_path / "t.csv"), write_cluster(tmp_path / "c.yaml")
    slo = ["--slo", "ttft_p99<1s"]
    for command in (
        ["advise", trace, cluster],
        ["compare", "--trace", trace, "--cluster", cluster],
        ["size", trace, "--node-types", cluster],
    ):
        done = cli(*command, *slo)
        assert done.exit_code == 2, done.stdout
        told = (
            "--slo: is of tokens, but all nodes serve a request a slot (got 'ttft_p99_s<1'); expected a node"
        )
        assert told in done.stderr


def test_training_jobs_are_told_from_requests_and_get_their_own_answers(cli, tmp_path):
    (tmp_path / "jobs.csv").write_text("job_id,submit_s,gpus,duration_s\na,0,2,100\nb,0,2,100\nc,0,1,100\n")
    (tmp_path / "c.yaml").write_text(
        "types: {box: {accelerators: 2, memory_gib: 8, usd_per_hour: 1}}\nnodes: [{type: box}]\n"
    )
    arguments = [tmp_path / "jobs.csv", tmp_path / "c.yaml", "--jobs", 1, "--policy", "fifo"]
    words = cli("advise", *arguments)
    assert words.exit_code == 0, words.stderr
    # by hand: a and b one after the other, then c: they end at 100, 200 and 300 s, and wait 0, 100 and 200 s
    assert "fifo has the best completion mean of 1: 200 s" in words.stdout
    assert "without GPUs for 100 s on average, 50 % of their completion" in words.stdout
    assert "100 % of the GPUs are held: the number of GPUs binds it" in words.stdout
    assert "Jobs of 1 GPU wait longest, 200 s; they have 20 % of the GPU time" in words.stdout
    # with two nodes a and b run at once, then c: 100, 100 and 200 s
    assert "One more box (1 USD per hour): mean completion changes by -67 s (-33 %)" in words.stdout
    assert "Without profiles" in words.stdout
    told = json.loads(cli("advise", *arguments, "--json").stdout)
    assert set(told["advice"]) == {
        "Allocator", "What binds the load", "One node more", "Where the model does not hold"
    }  # fmt: skip
    refused = cli("advise", *arguments, "--start", 5)
    assert refused.exit_code == 2
    assert "--start: does not apply to training jobs" in refused.stderr


def test_free_gpus_that_no_waiting_job_fits_are_told(cli, tmp_path):
    # b asks for 4 of 4 GPUs while a holds 1 for 900 s: 3 are free and nothing else may pass in fifo
    (tmp_path / "jobs.csv").write_text("job_id,submit_s,gpus,duration_s\na,0,1,900\nb,1,4,100\nc,2,1,100\n")
    (tmp_path / "c.yaml").write_text("types: {box: {accelerators: 4, memory_gib: 8}}\nnodes: [{type: box}]\n")
    words = cli("advise", tmp_path / "jobs.csv", tmp_path / "c.yaml", "--jobs", 1, "--policy", "fifo")
    assert words.exit_code == 0, words.stderr
    assert "of the GPUs are free: what is free is in pieces that waiting jobs do not fit" in words.stdout


def test_a_trace_without_a_cluster_is_refused(cli, tmp_path):
    done = cli("advise", write_trace(tmp_path / "t.csv"))
    assert done.exit_code == 2
    assert "cluster" in done.stderr
