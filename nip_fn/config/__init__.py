"""Configurations: their written form, its translation into records, and its checks."""
