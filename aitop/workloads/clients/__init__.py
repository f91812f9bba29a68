"""Clients of the servers among the bundled runs."""
