"""The parts of the command line: what it takes, counts, draws, and owes its terminal."""
