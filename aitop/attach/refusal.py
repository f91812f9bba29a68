"""How the ways in say no."""

from __future__ import annotations

from typing import Literal

RefusalState = Literal["absent", "denied", "failed"]


class AttachRefused(Exception):  # noqa: N818
    """The hook cannot get into, or out of, that process now, and nothing was changed there.

    `reason` is one sentence in words; `remedy` is a command or an action that would mend it, None where
    there is none. `state` is `absent` (it cannot work here), `denied` (the system or the owner forbids
    it) or `failed` (it was tried and did not work). `passing`: it is only a matter of time, ask again soon.
    """

    def __init__(self, state: RefusalState, reason: str, remedy: str | None = None, *, passing: bool = False) -> None:
        super().__init__(reason)
        self.state: RefusalState = state
        self.reason = reason
        self.remedy = remedy
        self.passing = passing


class NotNow(Exception):  # noqa: N818
    """This way in does not suit the moment (the thread is in the wrong place); the target is as it was."""
