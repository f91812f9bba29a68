"""Lines of source as a process sees them."""


def line_of(code, file, line):
    """A line as it is, None if there is no such line."""
    lines = code.around(file, line, before=0, after=0)
    return lines[0][1] if lines else None
