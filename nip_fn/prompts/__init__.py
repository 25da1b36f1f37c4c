"""Prompts: templates and chats."""
