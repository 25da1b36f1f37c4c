"""Everything that touches the world: files, models, processes, clocks."""
