"""Examines a process from outside, without stopping it: may it be entered, and where in its memory is its Python?"""
