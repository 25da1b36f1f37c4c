PYTHON ?= python3
BIN := .venv/bin
MODELS := adapters/nip_fn_adapters/base_models

# Most of a test's time is waiting: for a server, a program in the sandbox, a training.
WORKERS ?= 4
PYTEST := $(BIN)/pytest --numprocesses $(WORKERS) --dist loadgroup

.PHONY: train test test-all test-vllm check bench docs learn base-models mutants simulate clean

# The main job on the embedded default: set everything up, train, print what came of it.
train: .venv/.ready
	$(BIN)/nip-fn train --trainer malt

# Without it each worker would compile all tests anew, and each command's process the packages.
unexport PYTHONDONTWRITEBYTECODE

# What must hold before every commit: style, types, the direction of imports, and all tests but
# the exhaustive ones, full sweeps of which a sample is run here.
test: check
	$(PYTEST) -m "not exhaustive" --hypothesis-profile fast

# Everything that must hold.
test-all: check
	$(PYTEST)

# What needs the real vLLM, which has an environment of its own: its pins are not trl's.
test-vllm: .venv/.ready .venv-vllm/.ready
	$(BIN)/pytest --timeout 1800 -m "not exhaustive" tests/vllm

# Logs for Inspect are read by the real one, where this has installed it; `make test-all` then tests it.
.venv-inspect:
	$(PYTHON) -m venv .venv-inspect
	.venv-inspect/bin/pip install --quiet inspect-ai==0.3.285

# The same for experiment trackers.
.venv-track:
	$(PYTHON) -m venv .venv-track
	.venv-track/bin/pip install --quiet --editable . mlflow==3.17.2 tensorboard==2.21.0 trackio==0.43.0 wandb==0.31.0

check: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The site, build/site/index.html: the same Markdown, laid out, and a reference made of docstrings.
PAGES := README.md CONTRIBUTING.md SECURITY.md CHANGELOG.md LICENSE CITATION.cff llms.txt docs examples
docs: .venv-docs/.ready
	rm -rf build/pages build/site
	mkdir -p build/pages
	cp -r $(PAGES) build/pages
	.venv-docs/bin/zensical build --strict
	.venv-docs/bin/pdoc --docformat google -o build/site/api nip_fn nip_fn_adapters.recording.runs

# Speed and memory, as a table.
bench: .venv/.ready
	$(BIN)/python tests/benchmarks/run.py

# The learning experiment: two models, five seeds, three arms and five controls (hours).
learn: .venv/.ready
	$(BIN)/nip-fn sweep examples/learning.toml

# Further embedded models, from scripted players and another seed: builtin:tea@4, builtin:bug-hunt@4.
SEED ?= 4
base-models: .venv/.ready
	$(BIN)/python examples/make_tea_model.py --seed $(SEED) --out $(MODELS)/tea-$(SEED)
	$(BIN)/python examples/make_bughunt_model.py --seed $(SEED) --out $(MODELS)/bug-hunt-$(SEED)

# Forty small defects in the core, one at a time: which of them do the tests catch? (hours)
mutants: .venv/.ready
	$(BIN)/python -m tests.tools.mutants --num 40 --depth all

# A simulated world, a schedule of faults for each seed (a quarter of a second each): laws that were
# broken, and the line that repeats each.
SEEDS ?= 10000
simulate: .venv/.ready
	$(BIN)/python -m tests.simulation --seeds $(SEEDS)

.venv/.ready: pyproject.toml constraints.txt
	@echo "setting up .venv; this takes some minutes"
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[local,data,api,serve,ray,dev]"
	touch $@

.venv-docs/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/pip install --quiet --constraint constraints.txt --editable . pdoc zensical
	touch $@

.venv-vllm/.ready: tests/vllm/install.py
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python tests/vllm/install.py
	touch $@

clean:
	rm -rf .venv .venv-docs .venv-vllm .venv-inspect .venv-track build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
