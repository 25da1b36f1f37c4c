"""Models at a language-model server: they are sampled, trained and published there."""
