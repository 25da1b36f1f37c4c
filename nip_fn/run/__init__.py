"""A run as a scan over recorded events."""
