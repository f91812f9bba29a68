"""Gets the hook into a running process and out again.

entrance.py     the interface for other packages: install, begin, remove, survey
attempt.py      one request: tries the ways in, waits for the answer, withdraws the request
inspection/     examines the process first: may it be entered, and where in its memory is its Python?
ways/           the ways in: CPython's remote debugging, a synthetic signal frame on x86-64, gdb elsewhere
payload/        what is carried in: the injected line, the hook's modules, the memory or file that carries them
refusal.py      the errors with which an attach says no
"""
