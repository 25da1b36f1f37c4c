"""Data sets by name: built-in, from the hub, or a user's own files."""
