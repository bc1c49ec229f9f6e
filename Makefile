# Everything one does in this workspace. `make` alone lists the targets.
# A line of help is the comment after `##` behind a target.
SHELL := /bin/bash
.DEFAULT_GOAL := help
BIN := .venv/bin
# Tests and demos start hundreds of Python processes. Where this is set, each would compile all sources anew: a third of
# what its start takes.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help bootstrap bootstrap-run tools demo dashboards docs up down test test-slow test-long test-cluster test-image test-unit lint format bench bench-pacing bench-pacing-live bench-scaling bench-waits chaos simulate images sbom release-dry-run clean

help: ## list the targets
	@grep -hE '^[a-z][a-z-]*:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-17s %s\n", $$1, $$2}'

bootstrap: ## make .venv from the pinned requirements; does nothing when nothing changed
	@tools/bootstrap

bootstrap-run:
	@tools/bootstrap run

# Before the tests and not in them, as building takes minutes. Where Go or apt is missing, the tests say which they skip;
# in CI they fail.
tools: bootstrap ## fetch helm, helm-unittest and Prometheus for the tests; does nothing when they are at hand
	@$(BIN)/forebay-sandbox tools fetch helm helm-unittest promtool prometheus actionlint >/dev/null || test "$$CI" != true

demo: bootstrap-run ## a pulse of four times the valley rate on a real Kafka, or SCENARIO=drawing: a report and one JSON line
	@$(BIN)/forebay-sandbox demo $(if $(SCENARIO),--scenario $(SCENARIO))

up: bootstrap-run ## start the demo's stack (Kafka, engine, two workers) and leave it running
	@$(BIN)/forebay-sandbox up

dashboards: bootstrap-run ## write the chart's Grafana dashboards from their sources, helm/dashboards
	@$(BIN)/forebay-sandbox dashboards

docs: bootstrap ## the documents as a site: build/docs/site/index.html
	@$(BIN)/python tools/docs.py stage build/docs/source
	@$(BIN)/zensical build --strict --clean

down: ## stop what `make up` started
	@test ! -x $(BIN)/forebay-sandbox || $(BIN)/forebay-sandbox down

# Three at a time on two cores, each with a broker of its own: the tests wait more than they compute.
test: bootstrap tools ## the tests: unit, contract, the chart, integration on real brokers, a hundred simulated histories
	@$(BIN)/pytest tests -m "not long and not slow and not cluster and not image and not release" -n 3 --dist worksteal

test-slow: bootstrap ## the tests that take long and prove a promise: a short chaos, secured brokers, silent ones
# Chaos alone first: what it starts and kills asks for more than two cores, and brokers beside it take their seconds.
	@failed=0; $(BIN)/pytest tests/chaos -m slow || failed=1; \
	$(BIN)/pytest tests --ignore tests/chaos -m slow -n 2 --dist worksteal || failed=1; exit $$failed

test-long: bootstrap ## the tests that take many rounds, or a schema registry: kills at every moment, races, a thousand histories
	@$(BIN)/pytest tests -m long -n 3 --dist worksteal

test-cluster: bootstrap ## the chart on a real Kubernetes API server, whose parts are built first, once: about 20 minutes
	@$(BIN)/forebay-sandbox tools fetch helm etcd kube-apiserver kube-controller-manager kube-scheduler kubectl kwok controller-gen >/dev/null
	@$(BIN)/pytest tests/cluster -m cluster

# Always built anew; `make release-dry-run` and a single test take what it leaves in build/images/test, if of this commit.
test-image: bootstrap ## build both images with buildah, twice, and take requests through them; needs root; ten minutes
	@rm -rf build/images/test
	@$(BIN)/pytest tests/image -m image

test-unit: bootstrap ## only the tests that need no broker (two minutes)
	@$(BIN)/pytest tests/unit tests/contract

lint: bootstrap ## ruff, mypy --strict, the floors that rooms stand on, code said twice, the length of files, and the links of the documents
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy schemas/src producer/src worker/src sandbox/src helm/dashboards tests benchmarks tools/docs.py tools/lengths.py
	@$(BIN)/lint-imports --no-cache --no-logo
	@$(BIN)/pylint schemas/src producer/src worker/src sandbox/src
	@$(BIN)/python tools/lengths.py
	@$(BIN)/python tools/docs.py check

format: bootstrap ## let ruff rewrite the sources
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: bootstrap ## throughput, latency, memory, listing dead letters, metrics, a start before a million cancels, waits for outcomes, streams, imports: beside raw Kafka loops of the same run
	@$(BIN)/python -m benchmarks

bench-pacing: bootstrap ## the pacing policies in virtual time, against the bound on what any scheduler could do; one JSON line
	@$(BIN)/python -m benchmarks.pacing

bench-scaling: bootstrap ## replicas over a day of real traffic, in a model of KEDA and the HPA; one JSON line
	@$(BIN)/python -m benchmarks.scaling

bench-waits: bootstrap ## estimated against actual waits, and admission at twice the sustainable load, in virtual time; a plot, one JSON line
	@$(BIN)/python -m benchmarks.waits --plot docs/admission-waits.svg

bench-pacing-live: bootstrap ## the same promises in real time: default workers, a real broker, the simulated engine; a quarter of an hour
	@$(BIN)/python -m benchmarks.pacing_live

chaos: bootstrap ## break things by SEED=n for SECONDS=s (300), or the backend alone for OUTAGE=s; ends with one JSON line
	@cd tests && ../$(BIN)/python -m chaos $(if $(OUTAGE),--outage-seconds $(OUTAGE),--seed $(or $(SEED),1) --seconds $(or $(SECONDS),300))

simulate: bootstrap ## the worker in SEEDS simulated histories (1000), or SEED=n: one, with all that happened; one JSON line
	@PYTHONPATH=tests $(BIN)/python -m simulation $(if $(SEED),--seed $(SEED) --trace,--seeds $(or $(SEEDS),1000))

images: ## build forebay-producer and forebay-worker with Docker, or BUILDER=buildah; docs/images.md has what else can be given
	@tools/images

sbom: bootstrap ## what each image holds, as CycloneDX: build/sbom/*.cdx.json
	@tools/sbom

release-dry-run: bootstrap ## push images and chart to a registry on 127.0.0.1, sign and verify them with a new key
	@$(BIN)/forebay-sandbox tools fetch helm cosign docker-registry >/dev/null || test "$$CI" != true
	@$(BIN)/pytest tests/image -m release

clean: down ## stop the stack and delete what was built
	rm -rf .venv .sandbox build .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
