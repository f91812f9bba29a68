"""History to one Snapshot: steps, series, ranks and standstill. Pure: no clock, no input or output."""
