"""The errors with which an attach says no."""

from __future__ import annotations

from aitop.sources import procfs
from aitop.sources.source import SourceError


class AttachRefused(SourceError):  # noqa: N818
    """The hook cannot get into, or out of, that process now. Nothing was changed there.

    The state is `absent` if attaching cannot work for this process, `denied` if the system or the owner forbids it, and
    `failed` if it was tried in vain.
    """


class WaitingForTarget(AttachRefused):
    """The target has not answered yet."""

    def __init__(self, what: str, remedy: str) -> None:
        reason = f"hook waiting for the target: {what}"
        super().__init__("absent", reason, remedy, transient=True, code="waiting-for-target")


def ended(pid: int) -> AttachRefused:
    """Return the refusal for a process that has ended, or that cannot be read (as when we are out of descriptors)."""
    if procfs.stat(pid) is None and not procfs.gone(pid):
        return AttachRefused("failed", f"process {pid} cannot be read just now", "try again", transient=True)
    return AttachRefused("absent", f"process {pid} ended")


class NotNow(Exception):  # noqa: N818
    """This way in cannot be used at this moment, e.g. because of where the thread is. The target is unchanged."""
