"""Gets the hook into a running process and out again.

entrance.py     what others call: install, begin, remove, survey
attempt.py      one request on its way: tries the ways in, waits, withdraws it
inspection/     looks at the process first: may it be entered, where does its Python lie?
ways/           the ways in: CPython's remote debugging, a synthetic signal frame on x86-64, gdb elsewhere
payload/        what is carried in: the injected line, the hook's modules, the memory or file that carries them
refusal.py      how an attach says no
"""
