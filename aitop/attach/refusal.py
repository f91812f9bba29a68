"""How an attach says no: a code for programs, a sentence and a remedy for people."""

from __future__ import annotations

from typing import Literal

RefusalState = Literal["absent", "denied", "failed"]
RefusalCode = Literal[
    "no-process",
    "not-a-process",
    "own-process",
    "ended",
    "stopped",
    "traced",
    "strict-seccomp",
    "just-forked",
    "not-permitted",
    "switched-off",
    "not-python",
    "unsupported-python",
    "unsupported-machine",
    "no-torch",
    "no-way-in",
    "no-carrier",
    "damaged-files",
    "other-monitor",
    "waiting",
    "withdrawn",
    "way-failed",
    "hook-failed",
]

DENIED: frozenset[RefusalCode] = frozenset(("traced", "not-permitted", "switched-off"))
FAILED: frozenset[RefusalCode] = frozenset(
    ("no-carrier", "damaged-files", "other-monitor", "way-failed", "hook-failed")
)
PASSING: frozenset[RefusalCode] = frozenset(
    ("stopped", "traced", "just-forked", "no-torch", "other-monitor", "waiting")
)


class AttachRefused(Exception):  # noqa: N818
    """The hook cannot get into, or out of, that process now, and nothing was changed there.

    `code` is what programs decide by. `reason` is one sentence; `remedy` is a command or an action that would mend
    it, None where there is none.
    """

    def __init__(self, code: RefusalCode, reason: str, remedy: str | None = None) -> None:
        super().__init__(reason)
        self.code: RefusalCode = code
        self.reason = reason
        self.remedy = remedy

    @property
    def state(self) -> RefusalState:
        """`absent`: it cannot work here. `denied`: the system or the owner forbids it. `failed`: tried in vain."""
        return "denied" if self.code in DENIED else "failed" if self.code in FAILED else "absent"

    @property
    def passing(self) -> bool:
        """Whether it is only a matter of time: asking again soon makes sense."""
        return self.code in PASSING


class NotNow(Exception):  # noqa: N818
    """This way in does not suit the moment (the thread is in the wrong place); the target is as it was."""
