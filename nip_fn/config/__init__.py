"""Configurations as text, and the records they become."""
