"""The settings of rights.py: who runs the target, who runs aitop, and what the system takes from either."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

USER, OTHER = 54321, 54322
"""Users that no machine has: what has their number was made here."""


@dataclass(frozen=True)
class Setting:
    """`target` and `aitop` are commands that run another (the run, aitop) with other rights.

    `options` are those of the run; `enter` the namespaces of the run that aitop enters before, and then names the run
    by the pid that it has there.
    """

    name: str
    target: tuple[str, ...] = ()
    aitop: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    enter: tuple[str, ...] = ()


def user(number: int, *more: str) -> tuple[str, ...]:
    """As this user, without root's groups and capabilities."""
    return ("setpriv", f"--reuid={number}", f"--regid={number}", "--clear-groups", *more)


def without(*capabilities: str) -> tuple[str, ...]:
    """As this user, but for these capabilities."""
    gone = ",".join(f"-{name}" for name in capabilities)
    return ("setpriv", f"--bounding-set={gone}", f"--inh-caps={gone}")


def mounts(*commands: str) -> tuple[str, ...]:
    """With these mounts, that nobody else sees."""
    return ("unshare", "--mount", "sh", "-c", " && ".join((*commands, 'exec "$@"')), "sh")


def environment(*words: str) -> tuple[str, ...]:
    """With this changed in the environment."""
    return ("env", *words)


# Installs a filter that refuses ptrace and process_vm_readv with EPERM, then runs its arguments. x86-64.
FILTER = """
import ctypes, os, struct, sys
step = lambda code, hit, miss, value: struct.pack("=HBBI", code, hit, miss, value)
text = step(0x20, 0, 0, 0) + step(0x15, 2, 0, 101) + step(0x15, 1, 0, 310) + step(6, 0, 0, 0x7FFF0000)
text = ctypes.create_string_buffer(text + step(6, 0, 0, 0x50001))
program = ctypes.create_string_buffer(struct.pack("@HP", 5, ctypes.addressof(text)))
libc = ctypes.CDLL(None)
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, program, 0, 0):
    sys.exit(77)
os.execvp(sys.argv[1], sys.argv[1:])
"""
FILTERED = ("python3", "-c", FILTER)
OWN_PIDS = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
OVERRIDES = ("dac_override", "dac_read_search")
BOX = (*OWN_PIDS, *without("sys_ptrace", "sys_admin", "dac_override", "dac_read_search"))
ENTER = ("--mount", "--pid")
CLOSED_TMP = mounts("mount -t tmpfs -o ro,mode=755 tmpfs /tmp")
NO_FOLDERS = mounts(
    *(f"mount -t tmpfs -o ro,mode=755 tmpfs {folder}" for folder in ("/tmp", "/var/tmp", "/dev/shm")),
    "mount -t tmpfs -o mode=1777 tmpfs /mnt",
)
# torch wants a folder when it is loaded: one that a name from the root does not tell.
NOWHERE = (*NO_FOLDERS, *environment("TMPDIR=mnt"))
OWN_TMP = mounts("mount -t tmpfs tmpfs /tmp")
HIDDEN = mounts("mount -t proc -o hidepid=2 proc /proc")
NO_CHANGES = mounts("mount -o remount,ro,bind / 2>/dev/null || mount --bind / / && mount -o remount,ro,bind /")
IN_ROOTLESS = ("--user",)
ROOTLESS = ("unshare", "--user", "--map-root-user")

SETTINGS = (
    Setting("root on its own process"),
    Setting("root on a user's process", user(USER)),
    Setting("a user on an own process", user(USER), user(USER)),
    Setting("a user on another user's process", user(USER), user(OTHER)),
    Setting("a user on root's process", (), user(USER)),
    Setting("a user with CAP_SYS_PTRACE alone on another user's process", user(USER),
            ("setpriv", f"--reuid={OTHER}", f"--regid={OTHER}", "--clear-groups", "--inh-caps=+sys_ptrace",
             "--ambient-caps=+sys_ptrace")),
    Setting("root without CAP_DAC_OVERRIDE on a user's process", user(USER), without(*OVERRIDES)),
    Setting("root without CAP_CHOWN on a user's process", user(USER), without("chown")),
    Setting("root with CAP_SYS_PTRACE alone on a user's process", user(USER),
            ("setpriv", "--bounding-set=-all,+sys_ptrace", "--inh-caps=-all")),
    Setting("root without CAP_SYS_PTRACE on a user's process", user(USER), without("sys_ptrace")),
    Setting("root without CAP_SYS_PTRACE on root's process", (), without("sys_ptrace")),
    Setting("root without CAP_SYS_PTRACE on root's process without it", without("sys_ptrace"), without("sys_ptrace")),
    Setting("root without any capability on the like", without("all"), without("all")),
    Setting("a user on an own process that is closed (not dumpable)", user(USER), user(USER), ("closed",)),
    Setting("root on a user's process that is closed (not dumpable)", user(USER), (), ("closed",)),
    Setting("a seccomp filter around aitop refuses ptrace", user(USER), (*user(USER), *FILTERED)),
    Setting("a container around both", BOX, without("sys_ptrace", "sys_admin", "dac_override"), enter=ENTER),
    Setting("a container around both, as a user in it", (*OWN_PIDS, *user(USER)), user(USER), enter=ENTER),
    Setting("a container around both, another user in it", (*OWN_PIDS, *user(USER)), user(OTHER), enter=ENTER),
    Setting("a container around the run, root outside", BOX),
    Setting("a container around a user's run, root outside", (*OWN_PIDS, *OWN_TMP, *user(USER))),
    Setting("a container around a user's run, that user outside", (*OWN_PIDS, *OWN_TMP, *user(USER)), user(USER)),
    Setting("a container around aitop, the run outside", (), BOX),
    Setting("pids shared, each its own /tmp", (*OWN_TMP, *user(USER)), (*OWN_TMP, *user(USER))),
    Setting("a rootless container around both", (*user(USER), *ROOTLESS), (), enter=IN_ROOTLESS),
    Setting("a rootless container around the run, its user outside", (*user(USER), *ROOTLESS), user(USER)),
    Setting("a rootless container around the run, root outside", (*user(USER), *ROOTLESS)),
    Setting("a rootless container around aitop", user(USER), (*user(USER), *ROOTLESS)),
    Setting("/proc hides others' processes (hidepid=2)", user(USER), (*HIDDEN, *user(OTHER))),
    Setting("/proc hides others' processes, an own one", user(USER), (*HIDDEN, *user(USER))),
    Setting("a read-only root around aitop", user(USER), (*NO_CHANGES, *user(USER))),
    Setting("a read-only root around both, all folders closed", (*NOWHERE, *NO_CHANGES, *user(USER)),
            (*NOWHERE, *NO_CHANGES, *user(USER))),
    Setting("an unwritable /tmp around both", (*CLOSED_TMP, *user(USER)), (*CLOSED_TMP, *user(USER))),
    Setting("an unwritable /tmp around aitop", user(USER), (*CLOSED_TMP, *user(USER))),
    Setting("no folder at all for the run", (*NOWHERE, *user(USER)), user(USER)),
    Setting("no folder at all for the run, root outside", (*NOWHERE, *user(USER))),
    Setting("no folder but its TMPDIR for the run", (*NO_FOLDERS, "env", "TMPDIR=/mnt", *user(USER)), user(USER)),
    Setting("a home that is closed", user(USER), (*user(USER), *environment("HOME=/root"))),
    Setting("a home that is not there", user(USER), (*user(USER), *environment("HOME=/nonexistent"))),
    Setting("no HOME", user(USER), (*user(USER), *environment("-u", "HOME"))),
    Setting("no TERM", user(USER), (*user(USER), *environment("-u", "TERM"))),
    Setting("an unknown TERM", user(USER), (*user(USER), *environment("TERM=nobody-knows-this"))),
    Setting("an empty environment", user(USER), (*user(USER), *environment("-i"))),
    Setting("64 descriptors", user(USER), ("prlimit", "--nofile=64:64", *user(USER))),
    Setting("24 descriptors", user(USER), ("prlimit", "--nofile=24:24", *user(USER))),
    Setting("12 descriptors", user(USER), ("prlimit", "--nofile=12:12", *user(USER))),
    Setting("no files may be made (RLIMIT_FSIZE 0)", user(USER), ("prlimit", "--fsize=0:0", *user(USER))),
    Setting("6 processes and threads of a user", user(USER), (*user(USER), "prlimit", "--nproc=6:6")),
)  # fmt: skip


def lacking(setting: Setting, python: str) -> str | None:
    """What is missing to have this setting here, None where nothing is."""
    for before in (setting.target, setting.aitop):
        try:
            done = subprocess.run(
                [*before, python, "-m", "aitop", "--version"], capture_output=True, check=False, cwd="/"
            )
        except OSError as error:
            return f"{before[0]}: {error.strerror}"
        if done.returncode and not done.stdout:
            words = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or ["no reason given"]
            return f"`{' '.join(before)[:60]} …`: {words[0]}"
    return None
