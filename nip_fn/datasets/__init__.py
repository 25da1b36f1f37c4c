"""Data sets that are made here: pure functions of a key."""
