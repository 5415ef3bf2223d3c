# Headway: `make up` talks to a model, `make test` checks everything. Both set up what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: up test lint unit install compiled protos model-eval model-train fmt clean

up: install
	@exec $(BIN)/headway up $(ARGS)

test: install lint unit

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: install
	$(BIN)/pytest $(ARGS)

install: $(STAMP)

# grpcio-tools is older than the runtime on purpose (docs/decisions.md) and would pull an
# older protobuf with it, hence --no-deps.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 11) else f"Headway needs Python 3.11 or newer; {sys.executable} is {v[0]}.{v[1]}: make PYTHON=python3.11 …")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -c constraints.txt grpcio-tools
	@touch $(STAMP)

# A wheel with compiled cores (docs/simulator.md); the build leaves files beside its sources.
compiled: install
	rm -rf build/compiled && mkdir -p build/compiled
	cp -r headway headway_launch.py services bench cli protos models pyproject.toml README.md build/compiled
	HATCH_BUILD_HOOKS_ENABLE=1 $(BIN)/pip wheel --quiet --no-deps --no-build-isolation -w dist build/compiled
	@ls dist/headway-*.whl

protos: install
	$(BIN)/python -m protos.generate

fmt: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

model-eval: install
	$(BIN)/python -m models.evaluate $(ARGS)

model-train: install
	$(BIN)/python -m models.train $(ARGS)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis run
