"""`dspine serve`: what is found out before anything starts, and a whole life of the application."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from types import SimpleNamespace

import httpx
import openai
import psutil
import pytest
import ray
from ray import serve
from typer.testing import CliRunner

from dspine_cluster import miniature
from dspine_cluster.config import EngineConfig, ModelSource
from dspine_cluster.errors import ConfigError
from dspine_serve import serving
from dspine_serve.args import AppArgs, VerifierArgs
from dspine_serve.cli import app
from dspine_serve.serving import check_models, check_resources, free_port

COMMAND = [sys.executable, "-c", "from dspine_serve.cli import main; main()", "serve"]


def test_a_port_in_use_is_refused_and_another_is_proposed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port}.*--port"):
            free_port("127.0.0.1", port)
    assert free_port("127.0.0.1", port) == port


def test_port_0_is_any_that_is_free() -> None:
    assert free_port("127.0.0.1", 0) > 0


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot listen"):
        free_port("192.0.2.1", 0)


def test_the_miniature_can_be_served() -> None:
    check_models(AppArgs())


def test_a_pair_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    pair = miniature.folder("dspine")
    config = json.loads((pair / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"hidden_size": 2 * config["hidden_size"]}))
    (tmp_path / "model.safetensors").symlink_to(pair / "model.safetensors")
    with pytest.raises(ConfigError, match="more"):
        check_models(AppArgs(drafter=ModelSource(str(tmp_path))))


def test_a_folder_that_is_no_drafter_is_refused() -> None:
    with pytest.raises(ConfigError, match="drafter config"):
        check_models(AppArgs(drafter=ModelSource("miniature")))


def test_replicas_that_could_never_all_run_are_refused() -> None:
    args = AppArgs(verifiers=VerifierArgs(num_replicas=4))
    check_resources(args, {"CPU": 2.35})
    with pytest.raises(ConfigError, match=r"2\.35 CPU.*has 2"):
        check_resources(args, {"CPU": 2.0})
    with pytest.raises(ConfigError, match=r"1 GPU.*has 0"):
        check_resources(AppArgs(verifiers=VerifierArgs(num_gpus=1)), {"CPU": 8.0})
    with pytest.raises(ConfigError, match=r"1 rack.*has 0"):
        check_resources(AppArgs(verifiers=VerifierArgs(resources={"rack": 1})), {"CPU": 8.0})


def test_every_rank_of_a_verifier_is_counted() -> None:
    args = AppArgs(engine=EngineConfig(tensor_parallel=3))
    check_resources(args, {"CPU": 1.85})
    with pytest.raises(ConfigError, match=r"1\.85 CPU"):
        check_resources(args, {"CPU": 1.8})


def test_drafters_that_do_not_run_reserve_nothing() -> None:
    check_resources(AppArgs(drafter=ModelSource("none")), {"CPU": 0.6})


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("no-such-model",), "neither a folder nor a Hub id"),
        (("miniature", "--set", "engine.dtypo=1"), "engine.dtypo"),
        (("miniature", "--drafter", "miniature"), "drafter config"),
        (("miniature", "--host", "192.0.2.1"), "cannot listen"),
    ],
)
def test_the_command_refuses_a_mistake_before_anything_starts(
    arguments: tuple[str, ...], reason: str
) -> None:
    ended = CliRunner().invoke(app, ["serve", *arguments])
    assert isinstance(ended.exception, ConfigError)
    assert reason in str(ended.exception)
    assert not ray.is_initialized()


class FakeIngress:
    """Says at each call how many completions run, or raises."""

    def __init__(self, *answers: list[int] | Exception) -> None:
        self._answers = iter(answers)

    def broadcast(self, method_name: str) -> FakeIngress:
        assert method_name == "drain"
        return self

    def results(self, timeout_s: float) -> list[int]:
        assert timeout_s > 0
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def stopping(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeIngress, float], list[str]]:
    """Drains an application that needs a second to be deleted, and tells what was done at which second."""

    def drain(ingress: FakeIngress, timeout_s: float) -> list[str]:
        done: list[str] = []
        now_s = [0.0]

        def sleep(delay_s: float) -> None:
            now_s[0] += delay_s

        def applications() -> list[str]:
            return [] if now_s[0] > deleted_at_s[0] + 1 else [serving.APP]

        def delete(name: str, *, _blocking: bool) -> None:
            assert not _blocking
            deleted_at_s[0] = now_s[0]
            done.append(f"{name} deleted at {now_s[0]:.0f}")

        deleted_at_s = [inf]
        monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
        monkeypatch.setattr(time, "sleep", sleep)
        monkeypatch.setattr(serve, "get_deployment_handle", lambda *_: ingress)
        monkeypatch.setattr(serve, "delete", delete)
        monkeypatch.setattr(serve, "status", lambda: SimpleNamespace(applications=applications()))
        serving._drain(timeout_s)
        done.append(f"over at {now_s[0]:.0f}")
        return done

    return drain


def test_what_runs_is_waited_for(stopping: Callable[[FakeIngress, float], list[str]]) -> None:
    ingress = FakeIngress(*[[0, 2]] * 25, TimeoutError(), *[[1, 0]] * 24, [0, 0])
    assert stopping(ingress, 600.0) == ["dspine deleted at 10", "over at 11"]


def test_what_runs_is_waited_for_no_longer_than_allowed(
    stopping: Callable[[FakeIngress, float], list[str]],
) -> None:
    ingress = FakeIngress(*[[1]] * 1000)
    assert stopping(ingress, 20.0) == ["dspine deleted at 20", "over at 21"]


@contextmanager
def running(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command and its URL, once it has told that."""
    with tempfile.TemporaryDirectory(prefix="dspine-", ignore_cleanup_errors=True) as folder:
        environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
        process = subprocess.Popen(
            [*COMMAND, *arguments, "--port", "0"],
            env=environment | {"RAY_TMPDIR": folder},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            assert process.stdout is not None
            told = ""
            for line in process.stdout:
                told += line
                if match := re.search(r"served at (http://\S+)/v1", line):
                    break
            else:
                raise AssertionError(told)
            yield process, match[1]
        finally:
            process.kill()
            process.wait()


def wait_for_refusal(url: str) -> httpx.Headers:
    """What a server that drains tells a new client; before it does, it may serve some."""
    with httpx.Client(base_url=url, timeout=60) as http:
        while True:
            answer = http.post("/v1/completions", json={"prompt": "x", "max_tokens": 1})
            if answer.status_code != 200:
                assert answer.status_code == 503, answer.text
                assert "about to stop" in answer.text
                assert http.get("/ready").status_code == 503
                assert http.get("/health").status_code == 200
                return answer.headers
            time.sleep(0.05)


@pytest.mark.serve
@pytest.mark.xdist_group("serve")
def test_a_stopped_server_finishes_its_streams_and_leaves_nothing_behind() -> None:
    with (
        running("miniature", "--model-name", "small") as (process, url),
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120) as client,
    ):
        processes = psutil.Process(process.pid).children(recursive=True)
        stream = client.completions.create(
            model="small",
            prompt="Once upon a time",
            max_tokens=1000,
            temperature=0,
            stream=True,
            extra_body={"ignore_eos": True},
            stream_options={"include_usage": True},
        )
        chunks = iter(stream)
        next(chunks)
        shown = CliRunner().invoke(app, ["status", "--url", url])
        assert "tokens/s" in shown.output
        assert "small" in shown.output
        process.send_signal(signal.SIGTERM)
        assert wait_for_refusal(url)["Retry-After"] == "2"
        *_, last = chunks
        assert last.usage is not None
        assert last.usage.completion_tokens == 1000
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0, output
        assert "Traceback" not in output
        deadline_s = time.monotonic() + 30
        while left := [child for child in processes if child.is_running()]:
            assert time.monotonic() < deadline_s, left
            time.sleep(0.1)
        with pytest.raises(openai.APIConnectionError):
            client.models.list()
