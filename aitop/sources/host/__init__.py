"""The target's process tree, the machine it runs on and the control group that bounds it."""
