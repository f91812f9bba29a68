"""The data structures that all parts of the program exchange: no input or output, no clock."""
