"""Makes a Snapshot from the history: steps, series, ranks and standstill. Pure: no clock, no input or output."""
