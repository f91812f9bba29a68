"""When a run is to change: so many seconds after its start as its first argument says."""

import sys
import time


class Moment:
    """`over()` is True from then on, and prints the time once."""

    def __init__(self):
        self.at, self.told = time.monotonic() + float(sys.argv[1]), False

    def over(self):
        if time.monotonic() < self.at:
            return False
        if not self.told:
            self.told = True
            print(f"changed {time.time():.2f}", flush=True)
        return True
