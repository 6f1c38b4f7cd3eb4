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
