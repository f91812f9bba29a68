"""Looks at a process from outside: whether it may be entered, and where its Python lies. Nothing is stopped for it."""
