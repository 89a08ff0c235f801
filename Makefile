# Everything that a contributor types; `make` alone lists it. ARGS go to the command behind a target;
# WORKERS processes share the tests (0: none does) and a broker: two compute, the others wait most of the time.
# FAST_WORKERS share those that all compute.
# What fails beside others is run once more, alone (tests/support/second_run.py).
# HUDI_WORKERS share those of Hudi tables, each with a JVM of its own.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
HUDI := build/hudi
HUDI_TESTS := tests/hudi_tables
HUDI_PYTEST := $(HUDI)/bin/python -m pytest -c $(HUDI_TESTS)/pytest.ini --rootdir $(HUDI_TESTS) --confcutdir $(HUDI_TESTS)
FAST := not integration and not spark and not wide and not soak
WORKERS ?= 7
FAST_WORKERS ?= 4
TESTED = -m 'not wide and not soak' --numprocesses $(WORKERS) $(ARGS)
WIDE = -m '(wide or hypothesis) and not soak' --hypothesis-profile all --numprocesses $(WORKERS) $(ARGS)
AGAIN := $(BIN)/python tests/support/second_run.py
HUDI_WORKERS ?= 2
RELEASE := build/release
IMAGE_EXTRAS := --extra glue --extra metrics --extra postgres --extra private-key
LOCK := $(RELEASE)/bin/python -m uv pip compile --quiet --no-header --universal --generate-hashes --python-version 3.11
# PySpark comes as its source: pip warns of the older way to build it.
QUIETLY := --quiet --disable-pip-version-check --use-pep517

# Hundreds of processes import the same modules in a run of the tests: they are compiled once.
export PYTHONDONTWRITEBYTECODE :=

# Each commit of a test's SQLite catalog waits for its disk: in memory, where there are 8 GB of it, tests take
# a sixth less of the processor. Nothing stays there of those that pass.
MEMORY := $(shell [ -w /dev/shm ] && [ "$$(df --output=avail --block-size=M /dev/shm | tail -1 | tr -dc 0-9)" -ge 8000 ] && echo /dev/shm)
test wide check search durations: export PYTEST_DEBUG_TEMPROOT ?= $(MEMORY)

.DEFAULT_GOAL := help
.PHONY: help demo test wide soak check lint types-of-product types-of-tests search hudi hudisoak hudi-env bench simulate explore chaos format durations coverage env release image docs lock

help: ## This list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

demo: $(VENV)/.demo $(if $(findstring s3,$(ARGS)),$(VENV)/.store) ## Kafka to Iceberg on this machine: a broker, two participants, a killed coordinator, an audit; ARGS='--store s3'
	$(BIN)/headgate demo $(ARGS)

test: $(VENV)/.dev ## The tests, on a real broker (needs Java 17 or 21, or Docker for the broker)
	$(BIN)/pytest $(TESTED) || $(AGAIN) $$? $(TESTED)

wide: $(VENV)/.dev ## What `make test` shows, in more settings: every mutant, all examples, other formats, catalogs and sessions
	$(BIN)/pytest $(WIDE) || $(AGAIN) $$? $(WIDE)

soak: $(VENV)/.dev ## The long tests: two million records, a zombie of a minute, twenty rolling restarts
	$(BIN)/pytest -m soak -s $(ARGS)

search: $(VENV)/.dev ## The property tests with examples that no run has seen; once more, and others follow
	$(BIN)/pytest -q -m '$(FAST)' --numprocesses $(FAST_WORKERS) --hypothesis-profile default $(ARGS) tests/unit tests/protocol

check: lint ## What needs no broker: lint, and the fast tests with layers and wheel among them
	$(BIN)/pytest -q -m '$(FAST)' --numprocesses $(FAST_WORKERS) $(ARGS)

lint: $(VENV)/.dev ## Format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	@# Types are checked on an install: only there do the root folders form one package.
	$(BIN)/python tests/repository/tree.py build/checked
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target types-of-product types-of-tests

types-of-product:
	cd build/checked && MYPYPATH=.:../../examples/headgate-postgres ../../$(BIN)/mypy \
		--config-file ../../pyproject.toml --cache-dir ../../.mypy_cache -p headgate -p headgate_postgres

types-of-tests:
	cd build/checked && MYPYPATH=.:../../examples/headgate-postgres:../../tests ../../$(BIN)/mypy \
		--config-file ../../tests/mypy.toml --cache-dir ../../.mypy_cache/tests ../../tests ../../benchmarks

hudi: hudi-env ## Hudi tables, in an environment of their own (Spark 3.5, Hudi's bundle, ZooKeeper); an hour on two cores
	$(HUDI_PYTEST) -m 'not soak' --numprocesses $(HUDI_WORKERS) $(or $(ARGS),$(HUDI_TESTS))

hudisoak: hudi-env ## Random faults on Hudi sinks beside an eager foreign writer, seed by seed; an hour and more. ARGS='-k 3'
	$(HUDI_PYTEST) -m soak -s $(HUDI_TESTS)/test_hudi_chaos.py $(ARGS)

hudi-env: $(HUDI)/.made
	@PYTHONPATH=tests $(HUDI)/bin/python -m hudi_tables.bundle

bench: $(VENV)/.dev ## Beside Kafka Connect and Flink, on one topic: ARGS='--full', or as benchmarks/README.md says
	PYTHONPATH=tests:benchmarks $(BIN)/python -m comparison $(ARGS)

simulate: $(VENV)/.dev ## The simulation, long: ARGS='--seeds 100000 --first 1', or ARGS='--seed 7' to replay one; --leased: Hudi's lock
	$(BIN)/python tests/simulation/run.py $(ARGS)

chaos: $(VENV)/.dev ## Random faults on a loaded sink, and its audit: ARGS='--minutes 30 --seed 7 --catalog rest --store s3 --json FILE'
	PYTHONPATH=tests $(BIN)/python -m integration.faults.chaos $(ARGS)

explore: $(VENV)/.dev ## Every situation of the small and the large worlds; ARGS names some of them
	$(BIN)/python tests/exploration/explore.py $(or $(ARGS),all)

format: $(VENV)/.dev ## Format the code, and mend what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

release: $(RELEASE)/.made ## The files of a release in dist/: sdist, wheels for each platform, SBOM, sums. Uploads nothing
	rm -rf dist
	$(RELEASE)/bin/python deploy/release/release.py dist $(ARGS)

image: $(RELEASE)/.made ## A container image of the wheel in dist/, in build/image, without an engine (needs mmdebstrap, root)
	rm -rf build/image
	$(RELEASE)/bin/python deploy/release/image.py dist/*manylinux2014_x86_64*.whl deploy/requirements.lock build/image

docs: $(RELEASE)/.made ## The documentation as a site, a folder for each version, in build/site
	$(RELEASE)/bin/python deploy/release/site.py build/site $(ARGS)

lock: $(RELEASE)/.made ## Resolves anew what images install, with hashes
	$(LOCK) pyproject.toml $(IMAGE_EXTRAS) --output-file deploy/requirements.lock
	$(LOCK) pyproject.toml $(IMAGE_EXTRAS) --extra spark --output-file deploy/requirements-spark.lock
	$(LOCK) deploy/release/requirements.in --output-file deploy/release/requirements.txt

durations: $(VENV)/.dev ## Measures every test, and keeps in tests/durations.json what the others sort by
	$(BIN)/pytest -m 'not soak' --numprocesses $(WORKERS) --keep-durations $(ARGS)

coverage: $(VENV)/.dev ## Branches of the pure modules that their own tests never took
	$(BIN)/coverage run -m pytest -q tests/unit tests/protocol
	$(BIN)/coverage report

env: $(VENV)/.dev ## The environment in .venv, with all that tests and checks need

# A stamp is older than these files when dependencies, or what is compiled, may have changed.
$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit( \
		"need Python 3.11 or newer: make PYTHON=python3.11 ...; this is " + sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(VENV)/bin/python pyproject.toml setup.py native/loops.c
	@echo 'Installing headgate and Spark into $(VENV), once; Spark is large'
	$(BIN)/python -m pip install $(QUIETLY) --editable '.[spark,sql]'
	@touch $@

$(VENV)/.store: $(VENV)/.demo
	@echo 'Installing an object store for the demo into $(VENV), once'
	$(BIN)/python -m pip install $(QUIETLY) --editable '.[spark,demo]'
	@touch $@

$(VENV)/.dev: $(VENV)/bin/python pyproject.toml setup.py native/loops.c
	$(BIN)/python -m pip install $(QUIETLY) --editable '.[dev]'
	@touch $@ $(VENV)/.demo

$(RELEASE)/.made: deploy/release/requirements.txt
	$(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/python -m pip install $(QUIETLY) --require-hashes --requirement $<
	@touch $@

# A JVM of an older Spark: no environment can have both.
$(HUDI)/.made: pyproject.toml setup.py native/loops.c
	$(PYTHON) -m venv $(HUDI)
	$(HUDI)/bin/python -m pip install $(QUIETLY) --editable '.[test-hudi]'
	@touch $@
