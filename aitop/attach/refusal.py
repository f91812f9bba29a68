"""How an attach says no."""

from __future__ import annotations

from typing import Literal

# `absent`: it cannot work here. `denied`: the system or the owner forbids it. `failed`: tried in vain.
RefusalState = Literal["absent", "denied", "failed"]


class AttachRefused(Exception):  # noqa: N818
    """The hook cannot get into, or out of, that process now, and nothing was changed there.

    `reason` is one sentence; `remedy` is a command or an action that would mend it, None where there is none.
    `passing`: it is only a matter of time, and asking again soon makes sense.
    """

    def __init__(self, state: RefusalState, reason: str, remedy: str | None = None, *, passing: bool = False) -> None:
        super().__init__(reason)
        self.state = state
        self.reason = reason
        self.remedy = remedy
        self.passing = passing


class WaitingForTarget(AttachRefused):
    """The target has not answered yet."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__("absent", f"hook waiting for the target: {what}", remedy, passing=True)


def ended(pid: int) -> AttachRefused:
    """The refusal for a process that is gone."""
    return AttachRefused("absent", f"process {pid} ended")


class NotNow(Exception):  # noqa: N818
    """This way in does not suit the moment (the thread is in the wrong place); the target is as it was."""
