"""A simulated world around the real adapters: see `world`."""
