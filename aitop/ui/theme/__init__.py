"""Colours by role, and the themes that give each role its colour."""
