# One-line recipes; each makes what it needs on a fresh machine (Python 3.11+, a C compiler for compile=true).
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Without an NVIDIA driver the small CPU build of torch is taken, else the ordinary one.
TORCH  := $(shell if command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L >/dev/null 2>&1; then echo "torch>=2.2"; else echo "-c constraints-cpu.txt torch"; fi)

.PHONY: docs transcript demo test test-slow test-gpu check format bench clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: $(BIN)/python pyproject.toml constraints-cpu.txt
	$(BIN)/pip install -q $(TORCH)
	$(BIN)/pip install -q -e .
	@touch $@

$(VENV)/.test: $(VENV)/.run
	$(BIN)/pip install -q -e '.[test,check,postgres]'
	@touch $@

$(VENV)/.slow: $(VENV)/.test
	$(BIN)/pip install -q $(TORCH) -e '.[slow]'
	@touch $@

demo: $(VENV)/.run
	$(BIN)/tune run --vary batch_size=4..64:x2 --vary threads=1,2 --vary precision=fp32,bf16 \
	  --default batch_size=16 --budget 5m -- \
	  $(BIN)/python examples/train_gpt.py --batch-size {batch_size} --precision {precision} --steps 200

test: $(VENV)/.test
	$(BIN)/python -m pytest -n 2 -m "not slow and not gpu"

test-slow: $(VENV)/.slow
	$(BIN)/python -m pytest -m "slow and not gpu"

test-gpu: $(VENV)/.test
	$(BIN)/python -m pytest -m gpu

check: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.slow
	$(BIN)/python -m benchmarks.main_job --quick > docs/figures.md.new
	(printf '# Figures\n\nWritten by `make bench` on this machine: %s.\n\n## main_job\n\n' "$$(nproc) CPUs, $$(date -u +%F)"; \
	  cat docs/figures.md.new) > docs/figures.md && rm docs/figures.md.new

docs: $(VENV)/.run
	$(BIN)/python docs/write_cli.py

transcript: $(VENV)/.run
	$(BIN)/python docs/write_transcript.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
