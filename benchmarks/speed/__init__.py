"""How fast counting is, as ratios to what a machine can do and to what a user would write."""
