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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openai
import psutil
import pytest
import ray
from typer.testing import CliRunner

from dspine_cluster import miniature
from dspine_cluster.config import EngineConfig, ModelSource
from dspine_cluster.errors import ConfigError
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


@pytest.mark.serve
@pytest.mark.xdist_group("serve")
def test_a_stopped_server_finishes_its_streams_and_leaves_nothing_behind() -> None:
    with (
        running("miniature", "--model-name", "small", "--verify", "fixed:4") as (process, url),
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120) as client,
    ):
        processes = psutil.Process(process.pid).children(recursive=True)
        stream = client.completions.create(
            model="small",
            prompt="Once upon a time",
            max_tokens=500,
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
        *_, last = chunks
        assert last.usage is not None
        assert last.usage.completion_tokens == 500
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0, output
        assert "Traceback" not in output
        deadline_s = time.monotonic() + 30
        while left := [child for child in processes if child.is_running()]:
            assert time.monotonic() < deadline_s, left
            time.sleep(0.1)
        with pytest.raises(openai.APIConnectionError):
            client.models.list()
