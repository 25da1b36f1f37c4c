"""Code that vLLM imports, in its own environment; this folder is on its PYTHONPATH."""
