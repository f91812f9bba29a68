"""Ways to get the hook into and out of a running process."""

from aitop.attach.attempt import Attachment, Attempt, Limit
from aitop.attach.refusal import AttachRefused
from aitop.attach.session import begin, install, remove, settled

__all__ = ["AttachRefused", "Attachment", "Attempt", "Limit", "begin", "install", "remove", "settled"]
