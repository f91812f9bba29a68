"""When a run is to change: at the time that its first argument says (seconds of the monotonic clock)."""

import sys
import time


class Moment:
    """`over()` is True from then on, and prints the time once."""

    def __init__(self):
        self.at, self.told = float(sys.argv[1]), False

    def over(self):
        if time.monotonic() < self.at:
            return False
        if not self.told:
            self.told = True
            print(f"changed {time.time():.2f}", flush=True)
        return True
