"""The language-model server: vLLM, the adapters it serves, and a queue of training jobs."""
