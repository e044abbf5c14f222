"""Builds the application: ingress, verifiers, drafters and the directory through which these find each other."""

# Without postponed annotations: Serve reads the type of `build`'s argument to validate what a config file gives.
import secrets
from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.config import RequestRouterConfig

from dspine_cluster.config import VerifierConfig
from dspine_serve.args import (
    INGRESS_MAX_ONGOING_REQUESTS,
    MAX_ONGOING_REQUESTS,
    AppArgs,
    ReplicaArgs,
    ScaledArgs,
)
from dspine_serve.directory import Directory
from dspine_serve.drafter import Drafter, DrafterConfig
from dspine_serve.ingress import Ingress, IngressConfig
from dspine_serve.router import PinnedRouter
from dspine_serve.scaling_config import Role, serve_autoscaling
from dspine_serve.verifier import Verifier

_MAX_FOLLOWERS = 8192
"""Calls that the directory takes at a time: it keeps one of every verifier and ingress."""
_MAX_QUEUED_REQUESTS = 1024
"""Waiting in one proxy or ingress for a replica; the next ones are told to come back later."""
_BACKPRESSURE = {"status_code": 429, "retry_after_s": 2.0}
_HEALTH_CHECK_PERIOD_S = 1.0
_STOP_TIMEOUT_S = 20.0
_NO_ACCESS_LOG = {"enable_access_log": False}
"""Of what is called several times a second, or by an ingress that logs the request itself."""


def build(args: AppArgs) -> Application:
    """The Serve application for `args`; `serve run dspine_serve.app:build key=value` and config files call it."""
    return build_with(Verifier, args)


def build_with(verifier_class: type, args: AppArgs) -> Application:
    """The same with verifiers of another class, which takes the same arguments."""
    secret = args.secret.get_secret_value() if args.secret else secrets.token_hex(32)
    directory = _deploy(
        Directory,
        args.directory,
        max_ongoing_requests=_MAX_FOLLOWERS,
        graceful_shutdown_timeout_s=_STOP_TIMEOUT_S,
        logging_config=_NO_ACCESS_LOG,
    ).bind()
    drafter = None
    if args.drafter.name != "none":
        drafter = _deploy(
            Drafter,
            args.drafters,
            graceful_shutdown_timeout_s=_STOP_TIMEOUT_S,
            **_scaling(Role.DRAFTER, args.drafters, args),
        ).bind(
            DrafterConfig(args.target, args.drafter, args.engine, args.drafters, secret),
            directory,
            args.served_name,
        )
    verifier = _deploy(
        verifier_class,
        args.verifiers,
        num_ranks=args.engine.tensor_parallel,
        graceful_shutdown_timeout_s=args.drain_timeout_s,
        logging_config=_NO_ACCESS_LOG,
        request_router_config=RequestRouterConfig(request_router_class=PinnedRouter),
        **_scaling(Role.VERIFIER, args.verifiers, args),
    ).bind(
        VerifierConfig(
            target=args.target,
            drafter=args.drafter,
            engine=args.engine,
            drafting=args.drafting,
            tracing=args.tracing,
            secret=secret,
        ),
        directory,
        args.served_name,
    )
    ingress = _deploy(
        Ingress,
        args.ingresses,
        max_ongoing_requests=INGRESS_MAX_ONGOING_REQUESTS,
        graceful_shutdown_timeout_s=args.drain_timeout_s,
    )
    config = IngressConfig(
        model_name=args.served_name,
        target=args.target,
        drafter=args.drafter,
        engine=args.engine,
        http=args.http,
        tracing=args.tracing,
        placement=args.placement,
        max_body_bytes=args.ingresses.max_body_bytes,
        max_choices=args.ingresses.max_choices,
        is_autoscaled=args.verifiers.autoscaled or args.drafters.autoscaled,
    )
    return ingress.bind(config, directory, verifier, drafter)


def _scaling(role: Role, replicas: ScaledArgs, args: AppArgs) -> dict[str, Any]:
    """Options that leave the number of replicas to autoscaling, where that is wanted."""
    if not replicas.autoscaled:
        return {}
    config = serve_autoscaling(role, args.served_name, args.autoscaling, replicas.num_replicas)
    return {"num_replicas": None, "autoscaling_config": config}


def _deploy(
    replica: type,
    args: ReplicaArgs,
    max_ongoing_requests: int = MAX_ONGOING_REQUESTS,
    num_ranks: int = 1,
    **options: Any,
) -> Any:
    options = {"num_replicas": args.num_replicas} | options
    reserved = args.reserved(num_ranks)
    if num_ranks > 1:
        # One bundle: the ranks are processes of the replica, which sees all their GPUs.
        options |= {"placement_group_bundles": [reserved], "placement_group_strategy": "STRICT_PACK"}
    return serve.deployment(
        replica,
        name=replica.__name__,
        max_ongoing_requests=max_ongoing_requests,
        max_queued_requests=_MAX_QUEUED_REQUESTS,
        backpressure_config=_BACKPRESSURE,
        health_check_period_s=_HEALTH_CHECK_PERIOD_S,
        ray_actor_options={
            "num_cpus": reserved["CPU"],
            "num_gpus": reserved["GPU"],
            "resources": args.resources,
        },
        **options,
    )
