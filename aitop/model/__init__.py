"""Nouns of the program: no input or output, no clock."""
