"""Events of a run as the hook writes them, for tests of what makes steps of them."""

from aitop.sources.ring.step_maker import StepMaker

START = 10**12


class EventLog:
    """Writes events one after the other, their lengths in `unit` nanoseconds; steps come out of `maker`."""

    unit = 1

    def __init__(self):
        self.now, self.events, self.maker = START, [], StepMaker()

    def phase(self, kind, length, a=0, b=0):
        start, self.now = self.now, self.now + length * self.unit
        self.events.append((kind, start, self.now, a, b))

    def steps(self, watches=()):
        events, self.events = self.events, []
        return self.maker.read(events, watches)
