"""Python stacks of the target's processes, sampled from outside by py-spy."""

from aitop.sources.stacks.source import StackSource

__all__ = ["StackSource"]
