"""Causes of servers: why the slowest requests are slow, and what requests wait for."""
