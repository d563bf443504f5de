"""Figures as text: tables in several languages, and a map of blocks."""
