"""Ways to get the hook into and out of a running process."""
