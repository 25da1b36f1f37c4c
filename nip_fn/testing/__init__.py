"""Conformance tests for protocols and trainers, and parameters for tests."""
