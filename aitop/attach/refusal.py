"""How an attach says no."""

from __future__ import annotations

from aitop.sources import procfs
from aitop.sources.source import SourceError


class AttachRefused(SourceError):  # noqa: N818
    """The hook cannot get into, or out of, that process now, and nothing was changed there.

    The state is `absent` where it cannot work here, `denied` where the system or the owner forbids it, and `failed`
    where it was tried in vain.
    """


class WaitingForTarget(AttachRefused):
    """The target has not answered yet."""

    def __init__(self, what: str, remedy: str) -> None:
        reason = f"hook waiting for the target: {what}"
        super().__init__("absent", reason, remedy, transient=True, code="waiting-for-target")


def ended(pid: int) -> AttachRefused:
    """The refusal for a process that is gone, or that cannot be read: a lack of descriptors looks alike."""
    if procfs.stat(pid) is None and not procfs.gone(pid):
        return AttachRefused("failed", f"process {pid} cannot be read just now", "try again", transient=True)
    return AttachRefused("absent", f"process {pid} ended")


class NotNow(Exception):  # noqa: N818
    """This way in does not suit the moment (the thread is in the wrong place); the target is as it was."""
