"""Everything that a command can do, as functions."""
