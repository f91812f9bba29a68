"""The user's files as the target sees them, read with no more rights than it has."""
