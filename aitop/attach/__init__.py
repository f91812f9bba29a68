"""Ways to get the hook into and out of a running process."""

from aitop.attach.attempt import Attachment
from aitop.attach.refusal import AttachRefused
from aitop.attach.session import install, remove

__all__ = ["AttachRefused", "Attachment", "install", "remove"]
