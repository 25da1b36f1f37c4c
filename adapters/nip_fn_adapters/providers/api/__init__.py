"""Models behind an API that speaks OpenAI's language: sampling and fine-tuning."""
