"""Conformance tests for protocols, and parameters for tests."""
