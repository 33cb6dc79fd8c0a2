# Two commands set everything up: `make run` starts the daemon, `make test` runs the tests. `make help` lists the rest.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# More processes than cores, since many tests wait; all tests of a file in one of them, so that what they share is made once.
IN_PARALLEL := --numprocesses 4 --dist loadfile --no-loadscope-reorder
PROOF_LIMIT ?= 2h
OUT ?= hardware-results
# For every Python and platform that commwatch runs on (tzdata is for Windows); the hashes of all files of a version, as the registry publishes them.
PIN = $(BIN)/uv pip compile --quiet --universal --python-version 3.10 --generate-hashes --no-annotate --upgrade \
	--no-emit-package tzdata --custom-compile-command 'make requirements' --constraint constraints.txt
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
# Hundreds of interpreters start in the tests: the code is compiled once and not in each of them.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help run demo test proof prove prove-hour mutants lint format types check docs alerts cases bench hardware drill soak requirements packages release chart clean

help:  ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1: /p' $(MAKEFILE_LIST)

$(BIN)/.run: pyproject.toml constraints.txt
	@scripts/make-environment "$(PYTHON)" "$(VENV)"
	$(BIN)/pip install --quiet --editable .
	@touch $@

$(BIN)/.dev: pyproject.toml constraints.txt
	@scripts/make-environment "$(PYTHON)" "$(VENV)"
	$(BIN)/pip install --quiet --editable '.[dev]'
	-@$(BIN)/pytest --collect-only --quiet >/dev/null  # compiles the tests once, and not in each of the processes
	@touch $(BIN)/.run $@

run: $(BIN)/.run  ## start the daemon on the hardware that is here
	$(BIN)/commwatch run $(ARGS)

demo: $(BIN)/.run  ## start the daemon on a simulated node of 8 H100
	$(BIN)/commwatch run --simulate h100x8 $(ARGS)

test: $(BIN)/.dev  ## run the test suite; as root on Debian, install the programs that it needs
	@scripts/install-test-programs
	$(BIN)/pytest $(IN_PARALLEL) $(ARGS)

proof: $(BIN)/.dev  ## play what takes minutes: before a release, and after a change of what it is about
	@scripts/install-test-programs
	[ -x $(BIN)/helm ] || scripts/get-helm $(BIN)/python $(BIN)
	$(BIN)/pip install --quiet kubernetes-validate cloudcoil-models-prometheus-operator
	timeout --foreground $(PROOF_LIMIT) $(MAKE) --no-print-directory --jobs 2 prove-hour prove

# The hour mostly waits, beside all else.
prove-hour:
	$(BIN)/pytest tests/proof/test_hour.py

prove:
	$(BIN)/pytest $(IN_PARALLEL) --numprocesses 2 --ignore tests/proof/test_hour.py tests/proof
	$(BIN)/python -m benchmarks.hostile --seconds 60
	$(BIN)/python -m benchmarks.shares --seconds 30
	$(BIN)/python -m benchmarks.siege --seconds 60
	$(BIN)/python -m benchmarks.probe_soak
	$(BIN)/python -m benchmarks.fuzz --seconds 60
	$(MAKE) --jobs 1 drill soak

mutants: $(BIN)/.dev  ## make 80 small mistakes in the code, one at a time, and count those that the tests find
	@scripts/install-test-programs
	PYTHONPATH=tests $(BIN)/python -m mutation --work "$$(mktemp -d)" $(ARGS)

lint: $(BIN)/.dev  ## check style, and that imports run as the rooms allow
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo

types: $(BIN)/.dev  ## check types
	$(BIN)/mypy

format: $(BIN)/.dev  ## rewrite to the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(BIN)/.dev  ## write what is generated: alerts/rules, grafana/dashboards, and of docs/reference metrics, counters, findings, alerts, exit codes and licences
	$(BIN)/python -m commwatch.generate.documents
	$(BIN)/python packaging/licences.py

alerts: $(BIN)/.dev  ## run the cases of alerts/tests with promtool
	folder=$$(mktemp -d) && trap 'rm -r "$$folder"' EXIT && $(BIN)/python -m commwatch.generate.alert_cases "$$folder" && \
		promtool test rules "$$folder"/*.json

cases: $(BIN)/.dev  ## rehearse the published cases, and write their outputs into docs/using/cases.md
	$(BIN)/pytest --quiet --update-golden tests/end_to_end/test_cases.py

bench: $(BIN)/.dev  ## measure against the budgets of docs/engineering/performance.md
	$(BIN)/python -m benchmarks.sampling
	$(BIN)/python -m benchmarks.scrape
	$(BIN)/python -m benchmarks.daemon

# Installs nothing: a node with GPUs often has no network.
hardware:  ## on a machine with a GPU, 8 minutes at most: measure what is known from documents alone, into OUT=
	$(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -m benchmarks.hardware --out "$(OUT)" $(ARGS)

drill: $(BIN)/.run  ## play every fault of the catalogue until it pages and resolves; writes docs/reference/detection.md
	$(BIN)/commwatch drill --nodes 28 --report docs/reference/detection.md $(ARGS)

soak: $(BIN)/.dev  ## play a healthy day on every preset, which must raise no alert; writes docs/engineering/false-alarms.md
	$(BIN)/python -m benchmarks.healthy_day --report docs/engineering/false-alarms.md $(ARGS)

requirements: $(BIN)/.dev  ## pin what packages and images install, with hashes, into packaging/requirements*.txt
	$(BIN)/pip install --quiet uv
	$(BIN)/python packaging/shipped.py | $(PIN) --output-file packaging/requirements.txt -
	printf '%s\n' hatchling pip | $(PIN) --output-file packaging/requirements-build.txt -  # pip of Ubuntu 22.04 and Debian 12 is too old
	echo torch | $(PIN) --output-file packaging/requirements-probe.txt -

packages: $(BIN)/.run  ## build debs and rpms for x86-64 and arm64, for Python 3.10 to 3.14, into dist/
	$(BIN)/pip install --quiet --requirement packaging/requirements-build.txt
	$(BIN)/python packaging/build.py $(ARGS)

release: $(BIN)/.run  ## build sdist, wheel, debs, rpms, bills of materials and SHA256SUMS of the last commit into dist/
	$(BIN)/pip install --quiet --requirement packaging/requirements-build.txt
	$(BIN)/python packaging/release.py $(ARGS)

chart: $(BIN)/.dev  ## render packaging/kubernetes from the Helm chart
	[ -x $(BIN)/helm ] || scripts/get-helm $(BIN)/python $(BIN)
	$(BIN)/python packaging/chart.py

check: lint types test  ## all that must pass

clean:  ## remove the environment and caches
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
