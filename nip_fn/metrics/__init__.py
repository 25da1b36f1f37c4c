"""Metrics of stages, and comparisons of models."""
