"""Slurm job, Kubernetes pod, Ray job, container and user of a process, from its control group and its environment.

The control group comes first: the kernel keeps it, while a program may have been given any environment. Of the
environment only the variables named here are read, and only values of the form that their documentation gives.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping

from aitop.model.job import Job, Scheduler
from aitop.sources import procfs
from aitop.sources.host.command_lines import launcher_name

NODE_NAME = "NODE_NAME"
"""Of our own environment: a DaemonSet passes the node's name in it, as the host name of a pod is its own."""
_SLURM_GROUP = re.compile(r"/job_(?P<job>[0-9]+)(?:/step_(?P<step>\w+))?")
# With the systemd driver the uid has underscores for hyphens.
_POD_GROUP = re.compile(r"[/-]pod(?P<uid>[0-9a-f]{8}(?:[-_]?[0-9a-f]{4}){3}[-_]?[0-9a-f]{12})")
_CONTAINER_GROUP = re.compile(r"(?:^|[/-])(?P<id>[0-9a-f]{64})(?:\.scope)?(?:$|/)", re.MULTILINE)
_NUMBER = re.compile(r"[0-9]{1,12}")
_STEP = re.compile(r"[\w.]{1,32}", re.ASCII)
# The name of an object of Kubernetes, and Ray's id of a job: four bytes.
_OBJECT = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
_RAY_JOB = re.compile(r"[0-9a-f]{8}")


def node_name() -> str:
    """The name of this machine in the cluster."""
    return os.environ.get(NODE_NAME) or socket.gethostname()


def job_of(pid: int, member: int, node: str) -> Job:
    """The job whose topmost process is `pid`, named by the environment of `member`, such as its rank 0."""
    group = procfs.text(f"{procfs.PROC}/{member}/cgroup") or ""
    environment = procfs.environ(member) or {}
    launcher = launcher_name(procfs.argv(pid))
    user = procfs.user_name(procfs.user_id(member))
    return identified(pid, node, user, group=group, environment=environment, launcher=launcher)


def identified(
    pid: int, node: str, user: str, *, group: str, environment: Mapping[str, str], launcher: str | None = None
) -> Job:
    """The job that these facts show. `group` is the content of /proc/PID/cgroup."""

    def variable(name: str, form: re.Pattern[str]) -> str | None:
        value = environment.get(name, "")
        return value if form.fullmatch(value) else None

    slurm, pod, container = (pattern.search(group) for pattern in (_SLURM_GROUP, _POD_GROUP, _CONTAINER_GROUP))
    slurm_job = slurm["job"] if slurm else variable("SLURM_JOB_ID", _NUMBER)
    slurm_step = slurm["step"] if slurm and slurm["step"] else variable("SLURM_STEP_ID", _STEP)
    uid = pod["uid"].replace("_", "-") if pod else None
    ray_job = variable("RAY_JOB_ID", _RAY_JOB)
    scheduler: Scheduler | None = "slurm" if slurm_job else "kubernetes" if uid else "ray" if ray_job else None
    return Job(
        pid=pid,
        node=node,
        id=slurm_job or uid or f"{node}/{pid}",
        user=user,
        scheduler=scheduler,
        step=slurm_step if slurm_job else None,
        # The host name of a container is the name of its pod, unless the pod uses the host's network.
        pod=variable("HOSTNAME", _OBJECT) if uid else None,
        container=container["id"] if container else None,
        ray_job=ray_job,
        launcher=launcher,
    )
