"""Masks in files of many formats: opened, told apart, chosen, read, written."""
