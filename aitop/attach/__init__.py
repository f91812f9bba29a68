"""Ways to get the hook into and out of a running process."""

from aitop.attach.refusal import AttachRefused
from aitop.attach.session import Attachment, install, remove

__all__ = ["AttachRefused", "Attachment", "install", "remove"]
