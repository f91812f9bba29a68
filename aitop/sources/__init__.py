"""Where facts come from: a folder or module for each source."""
