"""Where aitop runs: which user, with which capabilities, in which container; told from the kernel's own texts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from aitop.sources import procfs

Kind = Literal["kubernetes", "docker", "podman", "lxc", "container"]

# The kernel gives its first pid and user namespaces these numbers (include/linux/proc_ns.h).
FIRST_PIDS, FIRST_USERS = "pid:[4026531836]", "user:[4026531837]"
SYS_PTRACE, DAC_OVERRIDE = 19, 1
_GROUPS: tuple[tuple[str, Kind], ...] = (
    ("kubepods", "kubernetes"),
    ("/docker", "docker"),
    ("libpod", "podman"),
    ("/lxc", "lxc"),
)


@dataclass(frozen=True)
class Place:
    """`container` None: not in one as far as can be seen. `own_pids`: it does not see the machine's processes.

    `own_users`: its root is not the machine's. `yama` is ptrace_scope as text, None without Yama; `profile` the
    security module's confinement, None where there is none.
    """

    uid: int
    capabilities: int
    seccomp: bool
    tracer: int
    yama: str | None
    container: Kind | None
    own_pids: bool
    own_users: bool
    profile: str | None

    @property
    def capable(self) -> bool:
        """Whether it holds CAP_SYS_PTRACE."""
        return bool(self.capabilities >> SYS_PTRACE & 1)

    @property
    def everybody(self) -> bool:
        """Whether it may look into every user's processes: a process's memory is a file of mode 0600."""
        return self.capable and bool(self.capabilities >> DAC_OVERRIDE & 1)


def read_place(root: str = "", environment: Mapping[str, str] = os.environ) -> Place:
    """The place of this process. `root` stands for / and exists for tests."""
    text, link = procfs.text, procfs.link
    fields = _fields(text(f"{root}/proc/self/status") or "")
    own_pids = (link(f"{root}/proc/self/ns/pid") or FIRST_PIDS) != FIRST_PIDS
    return Place(
        uid=_number(fields.get("Uid", "").split()[1:2], os.geteuid()),
        capabilities=_number([fields.get("CapEff", "")], 0, 16),
        seccomp=fields.get("Seccomp", "0") not in ("0", ""),
        tracer=_number([fields.get("TracerPid", "")], 0),
        yama=text(f"{root}/proc/sys/kernel/yama/ptrace_scope"),
        container=_container(root, environment) or ("container" if own_pids else None),
        own_pids=own_pids,
        own_users=(link(f"{root}/proc/self/ns/user") or FIRST_USERS) != FIRST_USERS,
        profile=_profile(text(f"{root}/proc/self/attr/current")),
    )


def _container(root: str, environment: Mapping[str, str]) -> Kind | None:
    if "KUBERNETES_SERVICE_HOST" in environment:
        return "kubernetes"
    membership = procfs.text(f"{root}/proc/self/cgroup") or ""
    by_group = next((kind for mark, kind in _GROUPS if mark in membership), None)
    if by_group is not None:
        return by_group
    if os.path.exists(f"{root}/run/.containerenv"):
        return "podman"
    return "docker" if os.path.exists(f"{root}/.dockerenv") else None


def _profile(text: str | None) -> str | None:
    """AppArmor says `docker-default (enforce)` or `unconfined`, SELinux a label."""
    words = (text or "").rstrip("\0").strip()
    return None if not words or words.startswith("unconfined") or ":unconfined_t:" in words else words


def _fields(status: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in status.splitlines())
    return {name: value.strip() for name, colon, value in pairs if colon}


def _number(words: list[str], otherwise: int, base: int = 10) -> int:
    try:
        return int(words[0], base)
    except (ValueError, IndexError):
        return otherwise
