"""Trainers, shared model groups and training jobs."""
