"""Hyper-parameters as frozen records."""
