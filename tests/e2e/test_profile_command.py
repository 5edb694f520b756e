"""`trimtab profile`: from measured iterations to a profile, and the built-in ones."""

from __future__ import annotations

import json

from trimtab.profiles import load_profile

HEAD = "batch,context,prompt_tokens,seconds\n"
OPTIONS = ("--gpu", "A1", "--model", "meta-llama/Llama-3.1-8B", "--memory-gib", "24")


def _iterations():
    decode = [(n, n * c, 0, 0.01 + 0.001 * n + 1e-7 * n * c) for n in (1, 4, 16, 64) for c in (100, 500, 900)]
    prompt = [(0, 0, z, 0.01 + 1e-4 * z) for z in (64, 128, 256, 512, 1024, 2048)]
    return HEAD + "".join(f"{n},{c},{z},{s:.9f}\n" for n, c, z, s in decode + prompt)


def test_iterations_become_a_profile(cli, tmp_path):
    (tmp_path / "rows.csv").write_text(_iterations())
    done = cli("profile", "fit", tmp_path / "rows.csv", *OPTIONS, "--html", "errors.html", "--json")
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["out"], told["errors"]["without prompts"]["rows"]) == ("profile.yaml", 12)
    assert "Errors by rows that decode" in (tmp_path / "errors.html").read_text(encoding="utf-8")
    profile = load_profile(tmp_path / "profile.yaml")
    at = profile.tables(64, 2048)
    alone_s = at.dense_s[16] + at.sequence_s[16] + at.attention_s[16] + at.context_s[16] * 8000
    assert abs(alone_s / 0.0268 - 1) < 0.02
    assert profile.notes == "fitted to rows.csv"


def test_the_table_has_both_kinds(cli, tmp_path):
    (tmp_path / "rows.csv").write_text(_iterations())
    done = cli("profile", "fit", tmp_path / "rows.csv", *OPTIONS, "--out", "p.yaml")
    assert done.exit_code == 0, done.stderr
    assert "without prompts" in done.stdout
    assert "with prompts" in done.stdout


def test_wrong_files_are_told(cli, tmp_path):
    file = tmp_path / "rows.csv"
    cases = {
        HEAD + "1,2,0,0.1\n": "too few iterations without prompts (got 1)",
        HEAD + "1,2,0,-0.1\n": "line 2: seconds: cannot be used (got '-0.1')",
        "batch,seconds\n1,2\n": "expected also the columns context, prompt_tokens",
        "layer,tokens,time_us\nq,1,1\n": "of operations also 'attention', 'per_sequence'",
    }
    for text, told in cases.items():
        file.write_text(text)
        done = cli("profile", "fit", file, *OPTIONS)
        assert done.exit_code == 2, done.stdout
        assert told in done.stderr


def test_an_unknown_model_needs_its_sizes(cli, tmp_path):
    (tmp_path / "rows.csv").write_text(_iterations())
    of = ("--gpu", "A1", "--model", "own", "--memory-gib", "24")
    done = cli("profile", "fit", tmp_path / "rows.csv", *of)
    assert done.exit_code == 2
    assert "unknown model (got 'own')" in done.stderr
    done = cli(
        "profile", "fit", tmp_path / "rows.csv", *of, "--weights-gib", "8", "--kv-bytes-per-token", "65536"
    )
    assert done.exit_code == 0, done.stderr


def test_built_in_profiles_are_listed(cli):
    done = cli("profile", "list")
    assert done.exit_code == 0
    assert "rtx4090-llama-3.1-8b" in done.stdout
    assert (
        json.loads(cli("profile", "list", "--json").stdout)["profiles"]["h100-llama-3.1-8b"]["source"]
        == "roofline"
    )


def test_a_roofline_is_that_of_the_built_in_profile(cli, tmp_path):
    of = ("--gpu", "H100 SXM", "--model", "meta-llama/Llama-3.1-8B", "--memory-gib", "80")
    done = cli("profile", "roofline", *of, "--tb-per-s", "3.35", "--tflops", "989", "--out", "h100.yaml")
    assert done.exit_code == 0, done.stderr
    assert "not measured" in done.stderr
    assert load_profile(tmp_path / "h100.yaml") == load_profile("h100-llama-3.1-8b")


def test_a_model_that_does_not_fit_is_told(cli, tmp_path):
    (tmp_path / "rows.csv").write_text(_iterations())
    of = ("--gpu", "A1", "--model", "Qwen/Qwen3-32B", "--memory-gib", "24")
    done = cli("profile", "fit", tmp_path / "rows.csv", *of)
    assert done.exit_code == 2
    assert "memory_gib: is too little (got 24.0); expected more than 67.8, for the weights" in done.stderr
    done = cli("profile", "fit", tmp_path / "rows.csv", *of, "--precision", "fp5")
    assert "unknown precision (got 'fp5')" in done.stderr


def test_requests_that_a_server_served_scale_a_profile(cli, tmp_path):
    rows = "".join(f"a,{3 * k},{3 * k + 0.1},{3 * k + 2.1},{100 + 7 * k},101\n" for k in range(30))
    head = "node,start_s,first_token_s,finish_s,prompt_tokens,output_tokens\n"
    (tmp_path / "requests.csv").write_text(head + rows)
    base = ("--base", "h100-llama-3.1-8b")
    done = cli("profile", "fit", tmp_path / "requests.csv", *OPTIONS, *base, "--html", "errors.html")
    assert done.exit_code == 0, done.stderr
    assert "context" in done.stdout
    assert "hardly" in done.stdout  # contexts hardly differ
    assert "Multiples of parts" in (tmp_path / "errors.html").read_text(encoding="utf-8")
    profile = load_profile(tmp_path / "profile.yaml")
    assert profile.notes == "fitted to requests.csv; scales h100-llama-3.1-8b"
    done = cli("profile", "fit", tmp_path / "requests.csv", *OPTIONS, *base, "--json")
    told = json.loads(done.stdout)
    assert [part["is_measured"] for part in told["parts"]].count(False) >= 1
    done = cli("profile", "fit", tmp_path / "requests.csv", *OPTIONS)
    assert (done.exit_code, "--base: is needed" in done.stderr) == (2, True)
