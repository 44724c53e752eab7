# Everything runs in one virtual environment: the active one ($VIRTUAL_ENV), else .venv, made when
# it is missing. Works with GNU make 3.81 (macOS) and later; recipes are plain POSIX shell.

VENV := $(if $(VIRTUAL_ENV),$(VIRTUAL_ENV),.venv)
BIN := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
PYTHONS := $(if $(PYTHON),$(PYTHON),python3 python3.14 python3.13 python3.12 python3.11 python3.10 python)
JOBS ?= 2
PY := "$(BIN)/python"

.DEFAULT_GOAL := help
.PHONY: help demo test test-oldest test-gpu test-all check docs site bench mutate clean venv
.PHONY: ready ready-dev ready-oldest ready-docs ready-mutate

help:
	@echo 'make demo      install, then run three commands on a trained model'
	@echo 'make test      install with the development extra, then run the tests (JOBS=2 at once)'
	@echo 'make test-oldest  the quick tests with the oldest torch and torchvision, in .venv-oldest'
	@echo 'make test-gpu  the tests that need a GPU, and what recording costs there (DEVICE=cuda)'
	@echo 'make test-all  the tests and the exhaustive suites: every model of the registry'
	@echo 'make check     format, lint, types, generated files fresh'
	@echo 'make docs      write the generated files anew'
	@echo 'make site      build the documentation site in build/site'
	@echo 'make bench     time and memory, each as a ratio with its limit'
	@echo 'make mutate    mutation tests, a table by package (PACKAGES="losses storing", EVERY=4)'
	@echo 'make clean     remove caches and what the demo wrote'

demo: ready
	@PATH="$$(cd "$(BIN)" && pwd):$$PATH" && export PATH && \
	$(call show,hookscope tree $(DIGITS)) && \
	$(call show,hookscope capture $(DIGITS) --layer "conv*" --input sample_models/five.png) && \
	$(call show,hookscope cam $(DIGITS) --input sample_models/five.png)

DIGITS := sample_models/digits.py:trained
show = printf '\n$$ %s\n' '$(1)' && $(1)

test: ready-dev
	@$(PY) -m pytest -n $(JOBS) --durations=10

# TESTS="tests/hooks tests/api" runs these alone.
TESTS ?=
test-oldest: ready-oldest
	@"$(OLDEST_PYTHON)" -m pytest -n $(JOBS) -m 'not slow and not exhaustive' $(TESTS)

# DEVICE=cpu shows that the tests themselves work, on a machine without a GPU.
DEVICE ?= cuda
test-gpu: ready-dev
	@HOOKSCOPE_TEST_DEVICE=$(DEVICE) $(PY) -m pytest tests/gpu
	@$(PY) -m bench.on_device $(DEVICE)

test-all: ready-dev
	@$(PY) -m pytest -n $(JOBS) -m ''

check: ready-dev
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy
	$(PY) -m tools.cli_reference --check
	$(PY) -m tools.catalog --check
	$(PY) -m tools.stubs --check

docs: ready-dev
	$(PY) -m tools.cli_reference
	$(PY) -m tools.catalog
	$(PY) -m tools.stubs
	$(PY) -m tools.report_picture
	$(PY) -m tools.run_picture
	$(PY) -m tools.pictures
	$(PY) -m tools.terminal_picture

site: ready-docs
	$(PY) -m sphinx --fail-on-warning --keep-going --quiet --builder html docs build/site
	@echo 'wrote build/site/index.html'

bench: ready
	@$(PY) -m bench

PACKAGES ?=
EVERY ?= 1
mutate: ready-mutate
	@$(PY) -m tools.mutate $(PACKAGES) --every $(EVERY)

clean:
	rm -rf build dist .pytest_cache .hypothesis .mypy_cache .ruff_cache .coverage
	rm -f trained.capture.safetensors trained.cam.safetensors trained.cam.png
	find hookscope tests tools bench sample_models -name __pycache__ -type d -prune -exec rm -rf {} +

# Installing -----------------------------------------------------------------------------------
# A stamp inside the environment tells that this checkout is installed there, editable, as
# pyproject.toml now stands. The development stamp stands for the plain one too.

comma := ,
STAMP := $(VENV)/.hookscope-installed

ready: venv
	@$(call install,.,plain dev docs mutate)

ready-dev: venv
	@$(call install,.[dev],dev mutate)

# The oldest releases that pyproject.toml names, in an environment of their own that finds every
# other package in the normal one. Its stamp names both; with other ones it is made anew.
# PIP_INDEX_URL may name an index whose torch comes without the CUDA libraries.
OLDEST := .venv-oldest
OLDEST_PYTHON := $(OLDEST)/$(notdir $(BIN))/python
OLDEST_RELEASES = sed -nE 's/^ *"(torch|torchvision)>=([0-9.]+)".*/\1==\2.*/p' pyproject.toml

ready-oldest: ready-dev
	@normal=$$($(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))') && \
	releases=$$($(OLDEST_RELEASES)) && \
	stamp="$(OLDEST)/.installed" && made=$$(printf '%s\n' "$$normal" $$releases) && \
	if [ "$$(cat "$$stamp" 2>/dev/null)" = "$$made" ]; then exit 0; fi && \
	echo "Installing" $$releases "into $(OLDEST) (a large download) ..." >&2 && \
	rm -rf "$(OLDEST)" && $(PY) -m venv --without-pip "$(OLDEST)" && \
	"$(OLDEST_PYTHON)" -c 'import sys, sysconfig; print("import site; site.addsitedir(%r)" % sys.argv[1], file=open(sysconfig.get_path("purelib") + "/normal.pth", "w"))' "$$normal" && \
	"$(OLDEST_PYTHON)" -m pip install --quiet --no-cache-dir --disable-pip-version-check $$releases && \
	printf '%s\n' "$$made" >"$$stamp"

ready-docs: venv
	@$(call install,.[docs],docs)

ready-mutate: venv
	@$(call install,.[dev$(comma)mutate],mutate)

# $(call install,WHAT,KINDS): pip install -e WHAT, unless the stamp is newer than pyproject.toml and
# holds this folder with one of KINDS; the first of KINDS is what it will hold.
define install
for kind in $(2); do \
	if [ "$(STAMP)" -nt pyproject.toml ] && [ "$$(cat "$(STAMP)")" = "$$kind $$PWD" ]; then \
		exit 0; \
	fi; \
done; \
$(PY) -m pip --version >/dev/null 2>&1 || $(PY) -m ensurepip; \
echo "Installing hookscope into $(VENV) (the first time, torch makes this a large download) ..." >&2; \
$(PY) -m pip install $$([ -t 1 ] || echo --quiet) --disable-pip-version-check -e '$(1)' && \
echo "$(firstword $(2)) $$PWD" >"$(STAMP)"
endef

venv:
	@if [ ! -x "$(BIN)/python" ]; then \
		if [ -n "$(VIRTUAL_ENV)" ]; then \
			echo "The active environment $(VENV) has no Python: deactivate it and try again." >&2; \
			exit 1; \
		fi; \
		for python in $(PYTHONS); do \
			if $$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' \
				>/dev/null 2>&1; then \
				echo "Making $(VENV) with $$python ..." >&2; \
				exec $$python -m venv "$(VENV)"; \
			fi; \
		done; \
		echo "hookscope needs Python 3.10 or newer with its venv module, and none was found on PATH: install one (Debian and Ubuntu: apt install python3-venv) or name it, as in make demo PYTHON=/path/to/python3." >&2; \
		exit 1; \
	fi
