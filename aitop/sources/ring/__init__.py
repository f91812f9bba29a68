"""Reads what the hook in a process writes to its ring, and makes steps, facts and allocator figures of it.

- source.py: the hooks of all ranks, as a source: brings them in, reads them, lets them go
- reader.py: the ring of one process: header, lease, events, the JSON area
- step_maker.py: events to step records; steps.py says what a step is, counted.py fills in steps that were not timed
- burst.py: profiles that were asked for, which the hook writes to memory of their own
"""
