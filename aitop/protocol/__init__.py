"""The binary protocol between the hook in a target and the monitor: the ring, its events, the memory of a profile.

These modules hold only numbers and names, because they are carried into the target together with the hook. A change
that an older hook or reader would misread needs a new `ring.VERSION`.
"""
