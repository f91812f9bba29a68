"""Python stacks of the target's processes, sampled from outside by py-spy."""
