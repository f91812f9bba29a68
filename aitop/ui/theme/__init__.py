"""Colours by meaning, and the themes that give each meaning its colour."""
