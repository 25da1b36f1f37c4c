"""Games: one short file each, in data and small pure functions."""
