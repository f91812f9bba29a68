"""Training scripts and servers that people write, each with a planted fault and its fix, run by `aitop demo`."""
