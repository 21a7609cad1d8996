# Every target sets up what it needs. `make` alone lists them.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
RUN := source $(BIN)/activate &&

# What a shell has set for other Pythons and checkouts does not reach this one's.
unexport PYTHONPATH PYTHONHOME PYTHONSAFEPATH PYTHONSTARTUP PYTHONOPTIMIZE PYTHONWARNINGS GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE

.PHONY: help setup demo test test-kubernetes test-browser drill review-set lint synth bench lock clean
help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

setup: $(READY) ## virtual environment with everything pinned, Node, kubectl, helm, the AWS and CDK CLIs

$(READY): requirements.txt package-lock.json pyproject.toml tools/surroundings.py tools/link.py tools/skyrl_reference.py
	@$(PYTHON) tools/surroundings.py
	@test -x $(BIN)/python || { echo "making $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing requirements.txt (a minute or two the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@$(BIN)/python tools/link.py
	@$(BIN)/python -m tools.skyrl_reference
	@touch $(READY)
	@echo "ready: source $(BIN)/activate, then hyperpod-rl --help; or make demo"

demo: $(READY) ## the main job on this machine: deploy, train, kill, resume, destroy
	@$(RUN) python -m local.demo

test: $(READY) ## all tests that need neither an account nor a cluster
	@$(RUN) python -m pytest -n 2 --dist loadgroup -m "not browser and not kubernetes"

test-kubernetes: $(READY) ## the manifests on a real kube-apiserver with KubeRay (Go builds them once, about 6 minutes of processor time)
	@$(RUN) python -m pytest tests/kubernetes -m kubernetes

drill: $(READY) ## every resource fails once, and a run survives every fault: about half an hour
	@$(RUN) python -m tools.drill && HYPERPOD_RL_DRILL=1 python -m pytest tests/drills

test-browser: $(READY) ## the report page in a real headless browser (apt-get install chromium)
	@$(RUN) python -m pytest tests/browser -m browser

lint: $(READY) ## style, types, forbidden imports, workflows
	@$(RUN) ruff check . && ruff format --check . && mypy && python -m tools.arrows && python -m tools.workflow_lint

review-set: $(READY) ## the pull requests of the review's tests through the real cdk diff, on a local cloud
	@$(RUN) python -m tests.operations.review.cdk_diff

synth: $(READY) ## templates and manifests of every environment, without an account
	@$(RUN) for name in reference production local; do CDK_VALIDATION=true cdk synth --quiet -c env=$$name -o cdk.out/$$name || exit; done

bench: $(READY) ## the budgets, measured on this machine
	@$(RUN) python -m benchmarks

lock: ## requirements.txt from requirements.in
	@$(BIN)/python -m pip install --quiet uv && $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-header requirements.in -o requirements.txt

clean: ## end the local cloud and remove everything that was made
	@if [ -x $(BIN)/hyperpod-rl ]; then $(BIN)/hyperpod-rl local down; fi
	@rm -rf $(VENV) node_modules cdk.out dist .local build .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
