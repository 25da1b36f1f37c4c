"""Parity with the *nip* library: its configurations, its `_type` keys, its edits of chats."""
