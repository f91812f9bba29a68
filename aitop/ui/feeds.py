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
    """A feed whose target can be asked for more. All of it is slow, and raises an error that says in words why not."""

    def detach(self) -> None:
        """Take the hook out of the target, and go on without it."""

    def profile(self, steps: int, progress: Callable[[str], None]) -> TakenProfile:
        """Run torch.profiler in the target for some steps."""

    def dump(self) -> StackDump:
        """Read the stacks of all threads."""

    def native(self, pids: Sequence[int]) -> dict[int, tuple[str, ...]]:
        """Read the frames below Python, which stops these processes for a moment."""


@runtime_checkable
class KeepsMark(Protocol):
    """A feed that keeps the moment that the user marked, for the next session with the script."""

    def marked(self) -> Snapshot | None: ...

    def mark(self, snapshot: Snapshot | None) -> None: ...


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
