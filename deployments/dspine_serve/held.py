"""What requests hold in a running application: slots, pages, reservations, sockets, tasks."""

from __future__ import annotations

from collections import Counter

import psutil

from dspine_serve.local_cluster import LocalCluster

_DEPLOYMENTS = ("Verifier", "Drafter", "Ingress")


def total(cluster: LocalCluster, deployment: str) -> Counter[str]:
    """Figures of a deployment, added up over its replicas."""
    figures: Counter[str] = Counter()
    for stats in cluster.stats(deployment):
        figures.update(stats)
    return figures


def held(cluster: LocalCluster) -> dict[str, float]:
    """What is held now, by name; what is not held is left out."""
    verifiers, drafters, ingresses = (total(cluster, name) for name in _DEPLOYMENTS)
    figures = {
        "running requests": verifiers["running_requests"],
        "waiting requests": verifiers["waiting_requests"],
        "verifier pages": verifiers["page_usage_ratio"],
        "drafter requests": drafters["drafter_requests"],
        "drafter pages": drafters["drafter_page_usage_ratio"],
        "open requests": ingresses["open_requests"],
        "waiting prompt tokens": ingresses["waiting_prompt_tokens"],
        "open streams": ingresses["open_streams"],
        "reservations": ingresses["reservations"],
        "calls to verifiers": sum(cluster.ongoing_requests("Verifier").values()),
        "calls to ingresses": sum(cluster.ongoing_requests("Ingress").values()),
    }
    return {name: value for name, value in figures.items() if value}


def resources(cluster: LocalCluster, port: int) -> dict[str, float]:
    """What grows where something leaks: tasks of event loops, open files of replicas, connections to the HTTP port.
    An idle application has some; compare."""
    pids = [replica.pid for deployment in _DEPLOYMENTS for replica in cluster.replicas(deployment)]
    tasks = sum(total(cluster, deployment)["event_loop_tasks"] for deployment in ("Verifier", "Ingress"))
    connections = [
        connection
        for connection in psutil.net_connections("tcp")
        if connection.laddr[1:2] == (port,)
        and connection.status != psutil.CONN_LISTEN
        # The kernel keeps these for a while, whatever the processes do.
        and connection.status not in (psutil.CONN_TIME_WAIT, psutil.CONN_NONE)
    ]
    return {
        "event loop tasks": tasks,
        "open files": sum(psutil.Process(pid).num_fds() for pid in pids),
        "connections": len(connections),
    }
