"""What runs inside the target: the standard library and the torch that is already there."""
