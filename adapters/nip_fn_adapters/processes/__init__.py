"""Processes beside this one: how they are started, watched and ended."""
