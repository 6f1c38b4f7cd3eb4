# `make` alone lists the targets. PYTHON names the interpreter to build .venv from.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3 python; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && { echo $$p; break; }; done)
export PATH := $(CURDIR)/.venv/bin:$(PATH)
.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: .venv/.ready ## make .venv from the hash-pinned lock

.venv/.ready: requirements.lock requirements-setup.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11, 3.12 or 3.13 is needed and none was found; name one: make setup PYTHON=/path/to/python3.12" >&2; exit 1; }
	@echo "setting up .venv with $(PYTHON) (once; about 3 GB)"
	@test -x .venv/bin/python || $(PYTHON) -m venv .venv
	@.venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-setup.lock
	@.venv/bin/uv pip sync --quiet --python .venv/bin/python --require-hashes requirements.lock requirements-setup.lock
	@.venv/bin/uv pip install --quiet --python .venv/bin/python --no-deps --no-build-isolation --editable .
	@touch $@

.PHONY: demo
demo: setup ## the whole pipeline on made-up patches: shards, books, a model, its trace
	@shardtrail sample-data data/raw --samples 600
	@shardtrail run

.PHONY: test
test: setup ## the tests
	@python -m pytest -n 2 --dist loadfile

.PHONY: lint
lint: setup ## style, types, import direction
	@ruff check . && ruff format --check .
	@mypy
	@python -m pytest -q tests/test_layers.py

.PHONY: repro
repro: setup ## rebuild what dvc.lock records
	@dvc repro

.PHONY: lock
lock: setup ## resolve the dependencies anew
	@uv pip compile pyproject.toml --extra dev --universal --generate-hashes --python-version 3.11 --no-header --quiet --upgrade -o requirements.lock
	@echo uv | uv pip compile - --universal --generate-hashes --python-version 3.11 --no-header --quiet -o requirements-setup.lock

.PHONY: clean
clean: ## remove what the demo made (not .venv)
	@rm -rf data models plots .shardtrail mlflow.db mlartifacts

.PHONY: bench-write
bench-write: setup .venv-peers/.ready .venv-peers-streaming/.ready ## raw patches to shards, beside others (10 min)
	@python -m benchmarks.write_shards.run
	@python -m benchmarks.tables

.PHONY: bench-jpeg
bench-jpeg: setup .venv-peers/.ready .venv-peers-streaming/.ready ## photographs to shards, beside others (10 min)
	@python -m benchmarks.jpeg.run
	@python -m benchmarks.tables

.PHONY: bench-check
bench-check: setup ## what one core checks of shards in a second, beside other readers (5 min)
	@python -m benchmarks.deep_check.run
	@python -m benchmarks.tables

.PHONY: bench-encodings
bench-encodings: setup ## what each encoding costs in bytes and in processor time (RAW=patches, 5 min)
	@python -m benchmarks.encodings.run $(RAW)
	@python -m benchmarks.tables

.PHONY: bench-orchestration
bench-orchestration: setup ## 10,000 shards on Prefect: what it costs, failures, a kill, retries (30 min)
	@python -m benchmarks.orchestration.run
	@python -m benchmarks.tables

.PHONY: bench-plan
bench-plan: setup ## plans of 480,038 (METADATA=metadata.parquet) and of 10 million samples (10 min)
	@python -m benchmarks.plan.run $(METADATA)
	@python -m benchmarks.tables

.PHONY: bench-locality
bench-locality: setup ## what a changed, new or lost sample rewrites, over 500 draws (METADATA=metadata.parquet, 15 min)
	@python -m benchmarks.locality.run $(METADATA)
	@python -m benchmarks.tables

.PHONY: bench-night
bench-night: setup ## a night without change on 8 million raw files, beside find (30 min)
	@python -m benchmarks.quiet_night.run
	@python -m benchmarks.tables

# The packages we are compared with, in environments of their own.
.venv-peers/.ready: benchmarks/requirements.lock
.venv-peers-streaming/.ready: benchmarks/requirements-streaming.lock
.venv-peers/.ready .venv-peers-streaming/.ready: | .venv/.ready
	@echo "setting up $(@D) (once)"
	@test -x $(@D)/bin/python || .venv/bin/uv venv --quiet --python .venv/bin/python $(@D)
	@.venv/bin/uv pip sync --quiet --compile-bytecode --python $(@D)/bin/python --require-hashes $<
	@touch $@

.PHONY: bench-lock
bench-lock: setup ## resolve what the benchmarks compare with anew
	@cd benchmarks && for name in requirements requirements-streaming; do \
		uv pip compile $$name.in $$(test $$name = requirements && echo -c ../requirements.lock) --universal --upgrade \
			--generate-hashes --python-version 3.11 --no-header --quiet -o $$name.lock || exit; done

.PHONY: kills
kills: setup ## 500 builds killed at random moments (1 h)
	@SHARDTRAIL_KILLS=500 python -m pytest tests/test_kills.py -n 2 --dist load --timeout 4000 -rP

# Every other Python that is there; name others: make determinism PYTHONS="/path/to/python3.12 /path/to/python3.13"
PYTHONS ?= $(foreach p,python3.11 python3.12 python3.13,$(shell $(p) -c 'print("$(p)")' 2>/dev/null))

.PHONY: determinism
determinism: setup ## the same bytes from every executor, surroundings and Python that is there
	@others=; for p in $(PYTHONS); do \
		version=$$($$p -c 'import sys; print("%d.%d" % sys.version_info[:2])') || exit; \
		test $$version = $$(python -c 'import sys; print("%d.%d" % sys.version_info[:2])') && continue; \
		venv=$(CURDIR)/.venv-python/$$version; \
		test -x $$venv/bin/python || uv venv --quiet --python $$p $$venv || exit; \
		uv pip sync --quiet --python $$venv/bin/python --require-hashes requirements.lock requirements-setup.lock || exit; \
		others="$$others $$venv/bin/python"; done; \
	echo "other Pythons:$${others:- none}"; \
	SHARDTRAIL_PYTHONS="$${others:-$(CURDIR)/.venv/bin/python}" python -m pytest tests/test_determinism.py --timeout 1200 -s -v

.PHONY: faults
faults: setup ## 1,000 faults put into shards, found, located, repaired (2 min)
	@SHARDTRAIL_FAULTS=1000 python -m pytest tests/test_injected_faults.py --timeout 3600 -s
