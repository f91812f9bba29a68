"""Places facts come from, one each."""
