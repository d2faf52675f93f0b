# A fresh machine needs Python 3.11 or newer, git and make; `make setup` brings the rest into this folder.
SHELL := /bin/sh
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

BIN := .venv/bin
PROCESSES ?= 2
PYTEST := $(BIN)/pytest -n $(PROCESSES) --dist loadscope --no-loadscope-reorder
PYTHON ?= $(shell for python in python3.11 python3 python3.12 python3.13; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
PROVISION = PYTHONPATH=src PYTHONDONTWRITEBYTECODE=1 $(PYTHON) -m tocsin.setup
CHECKED := src tests detectors examples spark_jobs dags bench
PRESENT = $(wildcard $(CHECKED))

# Containers often set it; each of the hundreds of processes of a test run would compile all that it imports anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup setup-s3 setup-browser setup-k8s setup-prometheus setup-containers demo up test test-all lint format bench lock upgrade python clean

help: ## List the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{ printf "  make %-14s %s\n", $$1, $$2 }'

setup: python ## Install everything that is locked; does nothing when it is there
	@$(PROVISION)

setup-s3: setup ## Install the Java archives that an object store takes (11 MB)
	@$(PROVISION) s3

setup-browser: ## Find a Chromium for the tests of the pages, or install Debian's
	@sh tests/browser/setup.sh

demo: setup ## Kafka, jobs, a burst of failed logins and the mails about it, until Ctrl-C
	@$(BIN)/tocsin demo

up: setup ## Start the embedded stack in the foreground, until Ctrl-C
	@$(BIN)/tocsin dev up

test: lint ## Style, types, walls, unit, Spark, end to end, faults: what decides on a change
	@$(PYTEST) -m "not long"

test-all: lint setup-s3 ## The same, and what takes long or what not every machine has; a test that lacks something says what
	@$(PYTEST)

setup-k8s: ## Install etcd for the tests on a real API of Kubernetes (Debian, as root), and see that Go is there
	@sh tests/kubernetes/setup.sh

setup-prometheus: setup ## Build Prometheus 3 with Go, for the tests that Debian's is too old for
	@$(BIN)/python -m tests.rig.prometheus_server

setup-containers: setup ## Install podman and podman-compose for the tests of docker-compose.yml (Debian, as root)
	@sh tests/containers/setup.sh

lint: setup ## Style, types and the walls between the rooms
	@$(BIN)/ruff check $(PRESENT)
	@$(BIN)/ruff format --check $(PRESENT)
	@$(BIN)/mypy $(PRESENT)
	@$(BIN)/lint-imports --no-logo

format: setup ## Put the style right
	@$(BIN)/ruff check --fix-only $(PRESENT)
	@$(BIN)/ruff format $(PRESENT)

bench: python ## Measure Tocsin beside its peers (needs a JDK)
	@$(PROVISION) bench
	@$(BIN)/python -m bench

lock: python ## Write the locks anew after a change of what is asked for
	@$(PROVISION) lock

upgrade: python ## The same, with the newest versions that may be had
	@$(PROVISION) lock --upgrade

clean: ## Stop the stack and remove everything that was generated
	@if [ -x $(BIN)/tocsin ]; then $(BIN)/tocsin dev down || true; fi
	rm -rf .venv .venv-airflow .tocsin .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache src/*.egg-info

python:
	@if [ -z "$(PYTHON)" ]; then echo "Tocsin needs Python 3.11 or newer; set PYTHON= if it has another name" >&2; exit 2; fi
