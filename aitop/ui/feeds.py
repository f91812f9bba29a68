"""What a feed can do beyond giving Snapshots: a live run can be looked into, a recording played from anywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from aitop.engine.replay_position import Position
from aitop.model.snapshot import Snapshot
from aitop.model.stacks import StackDump

if TYPE_CHECKING:
    from aitop.engine.torch_profile import TakenProfile


@runtime_checkable
class LiveRun(Protocol):
    """A feed whose target can be asked for more. What reads the target is slow, and raises an error that
    says in words why not.
    """

    def detach(self) -> None:
        """Take the hook out of the target, and go on without it."""

    def profile(self, steps: int, progress: Callable[[str], None]) -> TakenProfile:
        """Run torch.profiler in the target for some steps."""

    def dump(self) -> StackDump:
        """Read the stacks of all threads."""

    def native(self, pids: Sequence[int]) -> dict[int, tuple[str, ...]]:
        """Read the frames below Python, which stops these processes for a moment."""

    def marked(self) -> Snapshot | None:
        """The moment that the user marked in this session, or in the last one with the script."""

    def mark(self, snapshot: Snapshot | None) -> None:
        """Keep a marked moment for the next session with the script, or forget it."""


@runtime_checkable
class Seekable(Protocol):
    """A feed that can be played from anywhere: see engine.replay."""

    def position(self) -> Position: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def step(self, ticks: int) -> None: ...

    def seek_by(self, seconds: float) -> None: ...

    def seek_to(self, seconds: float) -> None: ...

    def set_speed(self, speed: float) -> None: ...
