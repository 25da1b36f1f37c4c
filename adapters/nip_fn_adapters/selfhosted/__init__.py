"""Models at a language-model server: they are sampled, trained and switched there."""
