"""The commands, one module each: its options, its call, its printing."""
