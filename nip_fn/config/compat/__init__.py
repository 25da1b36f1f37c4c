"""Configurations of the *nip* library."""
