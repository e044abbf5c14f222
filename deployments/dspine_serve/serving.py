"""The application in the foreground of a terminal: started, announced, drained and ended."""

from __future__ import annotations

import logging
import re
import signal
import socket
import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import ray
import torch
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from dspine_cluster.check import check_pair
from dspine_cluster.errors import ConfigError
from dspine_cluster.models.folder import load_tokenizer
from dspine_cluster.sources import locate_model
from dspine_serve.app import build
from dspine_serve.args import AppArgs
from dspine_serve.proxy_guard import guard_proxies

_logger = logging.getLogger(__name__)

APP = "dspine"
_HEALTH_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 30.0
"""Of replicas that have nothing to do."""
_CALL_TIMEOUT_S = 10.0
_POLL_S = 0.2
_TOLERANCE = 1e-6
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_OUR_ERROR = re.compile(r"dspine_cluster\.errors\.\w+: (.+)")


@dataclass(frozen=True, slots=True)
class Place:
    """Where the application runs and listens."""

    host: str
    port: int
    """0 chooses a free one."""
    ray_address: str | None = None
    """Of a running Ray cluster; None starts a Ray on this machine that ends with the application."""
    log_level: str = "WARNING"


def serve_until_stopped(args: AppArgs, place: Place, say: Callable[[str], None]) -> None:
    """Run the application until SIGINT or SIGTERM, then let it finish what it has, for `drain_timeout_s` at most; a
    second signal cuts that short.

    Raises:
        ConfigError: something is wrong with the models, the port, or what the replicas reserve, or a replica could not
            start.
        KeyboardInterrupt: a signal came before the application was healthy, or a second one.
    """
    check_models(args)
    port = free_port(place.host, place.port)
    with _signals() as stopping, _ray(place):
        check_resources(args, ray.cluster_resources())
        if serve.status().applications:
            raise ConfigError("that Ray cluster runs Serve applications already; use `serve deploy` there")
        try:
            serve.start(
                proxy_location="HeadOnly",
                http_options={"host": place.host, "port": port},
                logging_config={"log_level": place.log_level},
            )
            logging.getLogger("ray.serve").setLevel(place.log_level)
            _start(args, place.log_level)
            url = f"http://{_printable(place.host)}:{port}"
            _wait_until_healthy(url)
            say(f"{args.served_name} is served at {url}/v1; Ctrl-C ends it")
            stopping.wait()
            say("finishing what runs; Ctrl-C again ends it now")
            _drain(args.drain_timeout_s)
        finally:
            serve.shutdown()


def check_models(args: AppArgs) -> None:
    """Find out before anything starts whether the models can be served.

    Raises:
        ConfigError, CheckpointError: naming the first problem.
    """
    target = locate_model(args.target)
    drafter = None if args.drafter.name == "none" else locate_model(args.drafter)
    load_tokenizer(target)
    report = check_pair(target, drafter, getattr(torch, args.engine.dtype), args.engine.tensor_parallel)
    if report.problems:
        more = f" (`dspine check` shows {len(report.problems) - 1} more)" if report.problems[1:] else ""
        raise ConfigError(report.problems[0] + more)


def check_resources(args: AppArgs, available: dict[str, float]) -> None:
    """Find out whether all replicas can run at once: Serve would wait for ever.

    Raises:
        ConfigError: naming what is missing.
    """
    needed = defaultdict[str, float](float)
    deployments = [(args.directory, 1), (args.ingresses, 1), (args.verifiers, args.engine.tensor_parallel)]
    if args.drafter.name != "none":
        deployments.append((args.drafters, 1))
    for replica, num_ranks in deployments:
        for name, amount in replica.reserved(num_ranks).items():
            needed[name] += amount * replica.num_replicas
    for name, amount in needed.items():
        has = available.get(name, 0.0)
        if amount > has + _TOLERANCE:
            raise ConfigError(
                f"the replicas reserve {amount:g} {name} together, and Ray has {has:g}: start fewer, or let each "
                "reserve less (`dspine config` lists how much)"
            )


def free_port(host: str, port: int) -> int:
    """`port`, or one that is free where it is 0.

    Raises:
        ConfigError: it cannot be listened on.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.create_server((host, port), family=family) as listener:
            free: int = listener.getsockname()[1]
            return free
    except OSError as error:
        raise ConfigError(
            f"cannot listen on port {port} of {host} ({error.strerror}); choose another with --port"
        ) from error


def _start(args: AppArgs, log_level: str) -> None:
    try:
        serve.run(build(args), name=APP, route_prefix="/", logging_config={"log_level": log_level})
    except RuntimeError as error:
        told = _OUR_ERROR.findall(str(error))
        raise ConfigError(told[-1] if told else str(error)) from error


def _wait_until_healthy(url: str) -> None:
    deadline_s = time.monotonic() + _HEALTH_TIMEOUT_S
    while time.monotonic() < deadline_s:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except OSError:
            time.sleep(_POLL_S)
    raise ConfigError(f"the application is not healthy after {_HEALTH_TIMEOUT_S:.0f} s")


def _drain(timeout_s: float) -> None:
    """Return when nothing runs any more, or after `timeout_s`. Until then new clients are told to come back; replicas
    that are ended finish what they have, and the proxy, which `serve.shutdown` would end at once, passes it on."""
    deadline_s = time.monotonic() + timeout_s
    ingress = serve.get_deployment_handle("Ingress", APP)
    while not _is_idle(ingress) and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
    serve.delete(APP, _blocking=False)
    while APP in serve.status().applications and time.monotonic() < deadline_s + _STOP_TIMEOUT_S:
        time.sleep(_POLL_S)


def _is_idle(ingress: DeploymentHandle) -> bool:
    """Whether all replicas of the ingress drain and have nothing to do. Those that start or do not answer are asked
    again."""
    try:
        open_requests: list[int] = ingress.broadcast("drain").results(timeout_s=_CALL_TIMEOUT_S)
    except (RayError, RayServeException, TimeoutError) as error:
        _logger.warning("not all ingress replicas answer, and some may take new requests: %r", error)
        return False
    return not any(open_requests)


@contextmanager
def _ray(place: Place) -> Iterator[None]:
    options = {"log_to_driver": True, "logging_level": place.log_level}
    if place.ray_address is None:
        guard_proxies()
        ray.init("local", include_dashboard=False, **options)
    else:
        try:
            ray.init(place.ray_address, **options)
        except ConnectionError as error:
            raise ConfigError(f"no Ray cluster answers at {place.ray_address}") from error
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _signals() -> Iterator[_Stop]:
    """SIGINT and SIGTERM interrupt what runs, except somebody who waits for them: that one goes on."""
    stop = _Stop()
    kept = {number: signal.signal(number, stop.on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


class _Stop:
    def __init__(self) -> None:
        self._is_waiting = False
        self._came = threading.Event()

    def wait(self) -> None:
        """Return on the first signal from here on."""
        # Ray has set a handler of its own.
        signal.signal(signal.SIGTERM, self.on_signal)
        self._is_waiting = True
        self._came.wait()
        self._is_waiting = False

    def on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if not self._is_waiting:
            raise KeyboardInterrupt
        self._came.set()


def _printable(host: str) -> str:
    host = _WILDCARDS.get(host, host)
    return f"[{host}]" if ":" in host else host
