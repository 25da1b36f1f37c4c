"""Recordings in other formats."""
