"""Groups threads with equal stacks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from aitop.model.snapshot import CallNode, Stacks
from aitop.model.stacks import Frame, StackDump, ThreadStack
from aitop.stacks.origin import own_hook
from aitop.stacks.reading import own_start, telling

HALF = 0.5


class StackGroup(msgspec.Struct, frozen=True):
    """Threads with one stack. `frames` are those that their process entered itself, the outermost first.

    `what` names the call that they are in, such as Queue.get; `where` is the user's innermost line on the stack, None
    without user code on it: then only the innermost frame says where they are.
    """

    frames: tuple[Frame, ...]
    what: str
    where: Frame | None
    members: tuple[ThreadStack, ...]

    @property
    def place(self) -> Frame:
        """The line to show for the group: the user's, else the innermost one."""
        return self.where or self.frames[-1]


def stack_groups(dump: StackDump) -> tuple[StackGroup, ...]:
    """The threads of a dump by equal stacks (function, file and line of every frame), the largest group first.

    Frames that a forked process inherited from its parent are left out, and so is our hook. A thread without a frame
    is in no group. Among groups of one size those with a thread at work come first, then those in the user's code.
    """
    groups: dict[tuple[Frame, ...], list[ThreadStack]] = {}
    for thread in dump.threads:
        frames = own_frames([dump.frames[index] for index in thread.frames])
        if frames:
            groups.setdefault(frames, []).append(thread)
    together = [grouped(frames, members) for frames, members in groups.items()]
    return tuple(sorted(together, key=_order))


def own_frames(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """A stack (the outermost frame first) without what was inherited by a fork and without our hook's wrappers."""
    return tuple(frame for frame in frames[own_start(frames) :] if not own_hook(frame.file))


def grouped(frames: tuple[Frame, ...], members: Iterable[ThreadStack]) -> StackGroup:
    """Make one group; `frames` must not be empty. Main threads come first in it, then the lowest pids."""
    ordered = sorted(members, key=lambda member: (not member.main, member.pid, member.thread))
    where = next((frame for frame in reversed(frames) if frame.user), None)
    return StackGroup(frames, _what(frames), where, tuple(ordered))


def _order(group: StackGroup) -> tuple[int, bool, bool, int, str]:
    first = group.members[0]
    at_work = any(member.active for member in group.members)
    return -len(group.members), not at_work, group.where is None, first.pid, first.thread


def below_user(frames: Sequence[Frame]) -> Sequence[Frame]:
    """The frames below the user's innermost line; all of them where none of the user's is on the stack."""
    return frames[max((index + 1 for index, frame in enumerate(frames) if frame.user), default=0) :]


def _what(frames: Sequence[Frame]) -> str:
    """The innermost function below the user's line that is no plumbing."""
    below = below_user(frames)
    says = telling(below)
    # If all of it is plumbing, its outermost function is what the user called.
    entrance = below[0] if below and len(below) < len(frames) else frames[-1]
    return (says or entrance).function


def most_seen(stacks: Stacks, time: float) -> StackDump:
    """Make a stand-in for a dump where none was taken: each thread on its most sampled stack, as if at `time`.

    `active` is True for threads that worked in half of their samples or more, None where that is not known.
    """
    table: dict[Frame, int] = {}
    shares = {(thread.pid, thread.thread): thread for thread in stacks.threads}
    trees = [(process.pid, process.thread, True, process.tree) for process in stacks.processes if process.tree]
    trees += [(beside.pid, beside.thread, False, beside.tree) for beside in stacks.trees]
    threads = []
    for pid, thread, main, tree in trees:
        share = shares.get((pid, thread))
        active = share.active >= HALF if share is not None and share.active is not None else None
        frames = tuple(table.setdefault(frame, len(table)) for frame in _heaviest(tree))
        threads.append(ThreadStack(pid=pid, thread=thread, main=main, frames=frames, active=active))
    return StackDump(time=time, frames=tuple(table), threads=tuple(threads))


def _heaviest(tree: CallNode) -> list[Frame]:
    """The path down a tree that takes the child with the most samples at each node."""
    way: list[Frame] = []
    node: CallNode | None = tree
    while node is not None:
        if node.file:
            way.append(Frame(node.function, node.file, node.line, node.user))
        node = max(node.children, key=lambda child: child.samples, default=None)
    return way
