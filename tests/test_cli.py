"""The command as a person runs it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from dspine_cluster.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def text_of(stdout: str) -> str:
    """What was generated, without marks and the closing line."""
    return re.sub("[⟦⟧]", "", stdout.rsplit("\n\n", 1)[0])


@pytest.mark.parametrize("drafter", ["miniature-dspine", "miniature-dflash"])
def test_generate_prints_plain_decoding_s_text(drafter: str) -> None:
    drafted, plain = (
        run("generate", "What is 3 plus 4?", "--max-tokens", "40", "--drafter", name)
        for name in (drafter, "none")
    )
    assert drafted.returncode == plain.returncode == 0, drafted.stderr + plain.stderr
    assert text_of(drafted.stdout) == text_of(plain.stdout) != ""
    assert "acceptance length 1.00" in plain.stdout


def test_generate_counts_what_it_prints() -> None:
    result = run("generate", "Once upon", "--raw", "--max-tokens", "7", "--temperature", "1", "--seed", "3")
    match = re.search(r"(\d+) tokens in (\d+) rounds, acceptance length ([\d.]+)", result.stdout)
    assert match is not None
    assert 1 <= int(match[1]) <= 7
    assert int(match[2]) <= 6
    assert float(match[3]) >= 1.0


def test_generate_answers_the_messages_of_a_stored_request(tmp_path: Path) -> None:
    stored = tmp_path / "request.json"
    stored.write_text('{"messages": [{"role": "user", "content": "What is 3 plus 4?"}], "temperature": 0}')
    from_file = run("generate", "--messages", str(stored), "--max-tokens", "20")
    from_prompt = run("generate", "What is 3 plus 4?", "--max-tokens", "20")
    assert text_of(from_file.stdout) == text_of(from_prompt.stdout) != ""


def test_check_accepts_the_miniature() -> None:
    result = run("check", "miniature", "miniature-dspine")
    assert result.returncode == 0
    assert result.stdout.rstrip().endswith("can be served")


def test_check_refuses_a_gpu_that_is_too_small_and_says_why() -> None:
    result = run("check", "miniature", "none", "--gpu-gb", "0.1", "--context-tokens", "10000000")
    assert result.returncode == 1
    assert "has no room for a request of 10000000 tokens" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("generate",), "give either PROMPT or --messages"),
        (("generate", "--messages", "no-such-file.json"), "no chat request"),
        (("generate", "--messages", "no-such-file.json", "--raw"), "--raw continues a PROMPT only"),
        (("check", "no-such-model", "none"), "neither a folder nor a Hub id"),
        (("check", "owner/model", "none"), "revision"),
        (("generate", "hello", "--verify", "fixed:99"), "verify must be"),
        (("generate", "hello", "--drafter", "miniature"), "drafter config"),
    ],
)
def test_a_mistake_is_one_line_without_a_traceback(arguments: tuple[str, ...], reason: str) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert reason in result.stderr
    assert "Traceback" not in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_simulate_writes_how_the_fleet_did_and_refuses_unknown_keys(tmp_path: Path) -> None:
    scenario, report = tmp_path / "s.yaml", tmp_path / "out.json"
    text = "{name: s, duration_s: 15, warm_up_s: 5, load: {conversations_per_s: 1}, kinds: [{name: a, acceptance: 0.8}]"
    scenario.write_text(text + "}")
    outcome = run("simulate", str(scenario), "--alone", "--json", str(report))
    assert outcome.returncode == 0, outcome.stderr
    assert json.loads(report.read_text())["policies"][0]["name"] == "dspine"
    told = run("simulate", str(scenario), "--check-fidelity").stdout.splitlines()
    assert [line.split(":")[0] for line in told if "not judged" in line] == [
        "ttft_p99_s",
        "inter_token_p99_s",
    ]
    scenario.write_text(text + ", bogus: 1}")
    outcome = run("simulate", str(scenario))
    assert outcome.returncode == 2
    assert "bogus" in outcome.stderr
