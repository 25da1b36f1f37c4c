PYTHON ?= python3
BIN := .venv/bin

.PHONY: train test test-vllm check bench learn clean

# The main job on the embedded default: set everything up, train, print what came of it.
train: .venv/.ready
	$(BIN)/nip-fn train --trainer malt

# Everything that must hold: style, types, the direction of imports, all tests.
test: check
	$(BIN)/pytest

# What needs the real vLLM, which has an environment of its own: its pins are not trl's.
test-vllm: .venv/.ready .venv-vllm/.ready
	$(BIN)/pytest tests/vllm

check: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Speed and memory, as a table.
bench: .venv/.ready
	$(BIN)/python tests/benchmarks/run.py

# The learning experiment: five seeds, three trainers and a control (about an hour on two cores).
learn: .venv/.ready
	$(BIN)/python examples/learning.py

.venv/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[local,data,api,serve,dev]"
	touch $@

.venv-vllm/.ready: tests/vllm/install.py
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python tests/vllm/install.py
	touch $@

clean:
	rm -rf .venv .venv-vllm build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
