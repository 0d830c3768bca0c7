# Every target sets up what it needs: a virtual environment in .venv, once, through one stamp file.
PYTHON  ?= python3
PROFILE ?= sample
OUT     ?= out
WORKERS ?= $(shell nproc 2>/dev/null || echo 2)
SOURCE  ?=
EXTRAS  := fast,dask,report,cards,hub,dev
INTEROP := interop,lean
DATASET ?= dm_math
CASES   ?= 100000

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.setup-done
INTEROP_STAMP := $(VENV)/.interop-done
INTEROP_TESTS := tests/model/test_hf.py tests/eval/test_harness.py tests/eval/test_proof_toolchain.py
TOOL  := $(BIN)/tangobench
FLOW  := $(BIN)/python -m tangobench.flows
BUILD  = --profile $(PROFILE) --out $(OUT) --workers $(WORKERS) $(if $(SOURCE),--source $(SOURCE))
CODE  := src pipeline flows model eval tests bench
TEST  := $(BIN)/python -m pytest -n 2 --dist loadgroup

export OMP_NUM_THREADS ?= 1
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup data-fineweb data-lean data-dm-math data verify reproduce replicate report \
  test test-faults test-interop fuzz audit test-browser test-lean lint types bench bench-fineweb bench-dedup \
  bench-encoding bench-urls bench-near bench-lean bench-dm-math \
  bench-model bench-speed bench-loader bench-flows bench-memory bench-growth bench-flame deploy undeploy prefect-env constraints clean

help: ## print this list
	@awk 'BEGIN {FS = ":.*## "} /^## / {printf "\n%s\n", substr($$0, 4)} \
	  /^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@printf '\nPROFILE=sample|mini|paper (now %s)  OUT=%s  WORKERS=%s  SOURCE=folder, repository or URL\n' \
	  '$(PROFILE)' '$(OUT)' '$(WORKERS)'

## Start here
reproduce: data verify replicate report ## build, verify, train, score and report on embedded samples, no network
	@echo "reproduce: built and verified fineweb, lean and dm_math ($(PROFILE)), trained and scored the six models, wrote $(OUT)/report/index.html"

test: $(STAMP) ## all tests that fit in a quarter of an hour
	$(TEST) -m "not slow and not browser"

setup: $(STAMP) ## the virtual environment with the tested versions

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

$(INTEROP_STAMP): $(STAMP)
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(INTEROP)]'
	@touch $@

## Data
data: data-fineweb data-lean data-dm-math ## all three datasets

data-fineweb: $(STAMP) ## FineWeb-Edu temporal split, deduplicated and packed
	$(FLOW) fineweb $(BUILD)

data-lean: $(STAMP) ## Lean Mathlib source files and proofs
	$(FLOW) lean $(BUILD)

data-dm-math: $(STAMP) ## DeepMind Mathematics, 168 combinations
	$(FLOW) dm_math $(BUILD)

verify: $(STAMP) ## check every byte in OUT against its lock and the committed lock
	$(TOOL) verify $(OUT)/fineweb-$(PROFILE) --against committed
	$(TOOL) verify $(OUT)/lean-$(PROFILE) --against committed
	$(TOOL) verify $(OUT)/dm_math-$(PROFILE) --against committed

## Models
replicate: $(STAMP) ## train and score the six models (PROFILE=mini DATASET=dm_math|lean: hours)
	$(TOOL) replicate --profile $(PROFILE) --dataset $(DATASET) --out $(OUT) --workers $(WORKERS) $(if $(SOURCE),--source $(SOURCE))

report: $(STAMP) ## one static HTML site of everything in OUT
	$(TOOL) report --out $(OUT)

## Prefect
deploy: $(STAMP) ## local server and worker on loopback, deployments registered
	$(BIN)/python -m tangobench.flows.local_server up

undeploy: $(STAMP) ## stop what deploy started
	$(BIN)/python -m tangobench.flows.local_server down

prefect-env: $(STAMP) ## exports for a shell: eval "$(make -s prefect-env)"
	@$(BIN)/python -m tangobench.flows.local_server env

## Checks
lint: $(STAMP) ## ruff: rules and format
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)

types: $(STAMP) ## mypy --strict over the whole package
	@rm -rf build/types && mkdir -p build/types/tangobench
	@for f in src/tangobench/* pipeline flows manifests model eval; do \
	  ln -s $(CURDIR)/$$f build/types/tangobench/$$(basename $$f); done
	MYPYPATH=build/types $(BIN)/mypy -p tangobench

test-faults: $(STAMP) ## kill, corrupt, starve and lie to every builder and reader
	$(TEST) -m faults

fuzz: $(STAMP) ## the parsers, guided by coverage: CASES (default 100,000) per target
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[fuzz]'
	@for target in url record lean lock spec shard; do \
	  PYTHONPATH=tests/support $(BIN)/python tests/support/fuzz.py $$target $(CASES) || exit 1; done

audit: $(STAMP) ## known holes in the pinned versions (needs a network)
	@$(PYTHON) -m venv build/audit && build/audit/bin/pip install --quiet --disable-pip-version-check pip-audit
	@build/audit/bin/pip-audit --strict --no-deps --disable-pip -r constraints.txt \
	  || { echo "audit: holes found, or the advisory database is out of reach (see above)"; exit 1; }

test-browser: $(STAMP) ## the report in a headless Chromium
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get -qq update && apt-get -qq install -y chromium; } \
	  || { echo "needs a browser: apt-get install chromium"; exit 1; }
	$(TEST) -m browser

test-interop: $(INTEROP_STAMP) ## Hugging Face, lm-evaluation-harness, Lean's REPL and sandbox; skips are failures
	@command -v bwrap >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get -qq update && apt-get -qq install -y bubblewrap; } \
	  || { echo "needs a sandbox: apt-get install bubblewrap"; exit 1; }
	@bwrap --ro-bind / / --unshare-all true
	@mkdir -p build
	$(TEST) $(INTEROP_TESTS) -rs --junitxml=build/interop.xml
	@grep -q 'skipped="0"' build/interop.xml || { echo "test-interop: skipped tests, see above"; exit 1; }

test-lean: $(STAMP) ## a real Lean judges extractor and proofs (minutes, 4 GB; SOURCE= a Mathlib repository, FILES=all)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[lean]'
	TANGOBENCH_MATHLIB='$(SOURCE)' TANGOBENCH_MATHLIB_FILES='$(FILES)' $(BIN)/python -m pytest tests/lean_check -m slow -rsP

## Speed
bench: bench-fineweb bench-dedup bench-encoding bench-urls bench-near bench-lean bench-dm-math bench-model bench-speed bench-loader bench-flows bench-growth ## everything side by side with its peers

bench-fineweb: $(STAMP) ## FineWeb build and its parts
	$(BIN)/python bench/fineweb.py
	$(BIN)/python bench/fineweb.py --scaling
	$(BIN)/python bench/fineweb.py --growth
	$(BIN)/python bench/fineweb.py --bounds

bench-dedup: $(STAMP) ## component dedup: 2 million rows beside peers, then 50 million
	$(BIN)/python bench/dedup.py
	$(BIN)/python bench/dedup.py --growth
	$(BIN)/python bench/dedup.py 50_000_000

bench-encoding: $(STAMP) ## GPT-2 encoding alone
	$(BIN)/python bench/encoding.py

bench-urls: $(STAMP) ## URL normalisation
	$(BIN)/python bench/urls.py

bench-near: $(STAMP) ## near-duplicate audit
	$(BIN)/python bench/near.py

bench-lean: $(STAMP) ## Mathlib build (SOURCE= a Mathlib repository)
	$(BIN)/python bench/lean.py --scaling --write $(if $(SOURCE),--source $(SOURCE))

bench-dm-math: $(STAMP) ## generator against upstream
	$(BIN)/python bench/dm_math.py

bench-model: $(STAMP) ## kernels against naive and query-chunked
	$(BIN)/python bench/model.py

bench-speed: $(STAMP) ## tokens/s and peak memory of training and decoding
	$(TOOL) model speed --lengths 256 1024 4096 --rounds 3 --save bench/results/speed.json

bench-loader: $(STAMP) ## rows/s of the loader against memmap and datasets
	$(BIN)/python bench/loader.py

bench-memory: $(STAMP) ## peak memory as the input grows tenfold
	$(BIN)/python bench/memory.py

bench-growth: $(STAMP) ## time and memory over two orders of magnitude of input
	$(BIN)/python bench/growth.py

bench-flame: $(STAMP) ## flame graphs of the slowest stages
	$(BIN)/python bench/flame.py

bench-flows: $(STAMP) ## what orchestration costs
	$(BIN)/python bench/flows.py

## Housekeeping
constraints: $(INTEROP_STAMP) ## write the installed versions to constraints.txt
	@{ head -1 constraints.txt; $(BIN)/pip freeze --exclude-editable | grep -v ' @ ' | sed 's/+cpu//'; } > constraints.new
	@mv constraints.new constraints.txt

clean: ## remove outputs, states and caches, not the environment
	rm -rf $(OUT) build .pytest_cache .mypy_cache .ruff_cache .hypothesis
