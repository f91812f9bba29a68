"""Makes a Snapshot from the history: `aggregate` of steps, series, ranks, standstill, requests and a server's metrics.

Pure: no clock, no input or output.
"""
