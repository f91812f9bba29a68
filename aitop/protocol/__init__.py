"""What the hook in a target and the monitor that reads it agree on: the ring, its events, the memory of a profile.

Only numbers and names, so that it can travel into a target together with the hook. A change here that an older hook
or reader would misread needs a new `ring.VERSION`.
"""
