"""The sources of replies and the trainers of models, one room a provider."""
