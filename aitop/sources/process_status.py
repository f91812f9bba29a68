"""Who a process is and what it may do: its `/proc/PID/status` and `/proc/PID/stat`, read together."""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

import msgspec

from aitop.sources import procfs

CAP_CHOWN, DAC_OVERRIDE, SYS_PTRACE = 1 << 0, 1 << 1, 1 << 19
FORKED_WITHOUT_EXEC = 0x40
# An access control list has a head and entries (linux/posix_acl_xattr.h): kind, rights, number of the user or group.
ACL_HEAD, ACL_ENTRY = 4, struct.Struct("<HHI")
ACL_USER, ACL_GROUP_OBJ, ACL_GROUP, ACL_MASK = 0x02, 0x04, 0x08, 0x10


class User(NamedTuple):
    """As whom a process opens files: the user and all groups that count for files."""

    user: int
    groups: frozenset[int]

    def may(self, status: os.stat_result, rights: int, acl: bytes = b"") -> bool:
        """Whether a file or folder gives this user all of these rights (4 read, 2 write, 1 search).

        Its mode says that, or its access control list (`acl`, as the kernel hands it out; see acl(5)).
        """
        if self.user == 0:
            return True
        if self.user == status.st_uid or not acl:
            shift = 6 if self.user == status.st_uid else 3 if status.st_gid in self.groups else 0
            return status.st_mode >> shift & rights == rights
        if len(acl) % ACL_ENTRY.size != ACL_HEAD:
            return False
        entries = list(ACL_ENTRY.iter_unpack(acl[ACL_HEAD:]))
        most = next((given for tag, given, _ in entries if tag == ACL_MASK), 7)
        own = [given & most for tag, given, number in entries if (tag, number) == (ACL_USER, self.user)]
        of_groups = [
            given & most
            for tag, given, number in entries
            if (tag == ACL_GROUP and number in self.groups) or (tag == ACL_GROUP_OBJ and status.st_gid in self.groups)
        ]
        # The first class that the user is in counts, even if a later one gives more.
        return any(given & rights == rights for given in own or of_groups or [status.st_mode])


class ProcStatus(msgspec.Struct, frozen=True):
    """One reading of a process; fields that an older kernel lacks count as zero.

    `uids` and `gids` are the real, effective, saved and filesystem ids as seen from here, `groups` the supplementary
    groups. `inner_pid` is the pid in the process's own pid namespace. `tracer` is 0 where nobody traces it. `seccomp`
    is 0, 1 (strict) or 2 (filtered). `started` is the start time in clock ticks after boot, which together with the
    pid identifies a process. `forked`: it has not executed a program since it was forked. `capabilities` are the
    effective and `permitted` the permitted ones.
    """

    pid: int
    leader: int
    parent: int
    name: str
    state: str
    tracer: int
    uids: tuple[int, ...]
    gids: tuple[int, ...]
    groups: tuple[int, ...]
    inner_pid: int
    capabilities: int
    permitted: int
    seccomp: int
    no_new_privileges: bool
    shadow_stack: bool
    started: int
    forked: bool

    @property
    def user(self) -> User:
        """As whom it opens files."""
        return User(self.uids[-1], frozenset((self.gids[-1], *self.groups)))


def read_status(pid: int) -> ProcStatus | None:
    """The process's status, None where there is no such process or it is hidden from us."""
    text, stat = procfs.text(f"{procfs.PROC}/{pid}/status"), procfs.stat(pid)
    if text is None or stat is None:
        return None
    return parse_status(pid, text, stat.start, forked=bool(stat.flags & FORKED_WITHOUT_EXEC))


def parse_status(pid: int, text: str, started: int, *, forked: bool = False) -> ProcStatus:
    """The status in the text of `/proc/PID/status`. Raises ValueError for what no kernel writes."""
    fields = procfs.parse_fields(text)

    def numbers(key: str) -> tuple[int, ...]:
        return tuple(int(word) for word in fields.get(key, "").split())

    def number(key: str) -> int:
        return (numbers(key) or (0,))[0]

    return ProcStatus(
        pid=pid,
        leader=number("Tgid") or pid,
        parent=number("PPid"),
        name=fields.get("Name", ""),
        state=fields.get("State", "?")[:1],
        tracer=number("TracerPid"),
        uids=numbers("Uid") or (0,),
        gids=numbers("Gid") or (0,),
        groups=numbers("Groups"),
        inner_pid=(numbers("NSpid") or (pid,))[-1],
        capabilities=int(fields.get("CapEff", "0"), 16),
        permitted=int(fields.get("CapPrm", "0"), 16),
        seccomp=number("Seccomp"),
        no_new_privileges=bool(number("NoNewPrivs")),
        shadow_stack="shstk" in fields.get("x86_Thread_features", ""),
        started=started,
        forked=forked,
    )


def own_status() -> ProcStatus:
    """The status of this process. Raises OSError without /proc."""
    status = read_status(os.getpid())
    if status is None:
        raise OSError("/proc is not mounted")
    return status
