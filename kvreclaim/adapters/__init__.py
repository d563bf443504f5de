"""Doors to other libraries, each imported by the function that needs it."""
