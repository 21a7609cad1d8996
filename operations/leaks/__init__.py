"""Leaks: what an environment, or a controller on its behalf, made and nobody takes away any more."""
