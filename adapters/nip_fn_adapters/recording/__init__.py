"""Recordings on disk: written, read, followed, shared and shown."""
