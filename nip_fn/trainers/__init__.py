"""Trainers: how agents learn from an iteration."""
