"""The embedded default: a small transformers model in this process, trained in a child process."""
