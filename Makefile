# Every target sets up what it needs: a virtual environment in .venv, once, through one stamp file.
PYTHON  ?= python3
PROFILE ?= sample
OUT     ?= out
WORKERS ?= $(shell nproc 2>/dev/null || echo 2)
SOURCE  ?=
TORCH_INDEX ?=
EXTRAS  := fast,dask,report,cards,hub,dev
INTEROP := interop,lean
DATASET ?=
DEVICES ?=
ONLY    ?=
SKIPS   ?= failures
CASES   ?= 100000

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.setup-done
INTEROP_STAMP := $(VENV)/.interop-done
KERNELS_STAMP := $(VENV)/.kernels-done
INTEROP_TESTS := tests/model/test_hf.py tests/eval/test_harness.py tests/eval/proofs/test_toolchain.py
SCALE_TESTS := tests/pipeline/fineweb tests/pipeline/core/test_remote.py tests/flows/test_runner_dask.py
LEAN_TESTS := tests/lean_check tests/pipeline/lean/test_paper.py
TOOL  := $(BIN)/tangobench
FLOW  := $(BIN)/python -m tangobench.flows
BENCHES := fineweb dedup encoding urls near plan scale lean dm-math model speed loader flows growth memory flame commands

# A value for the shell, whatever characters it holds.
quote  = '$(subst ','\'',$(1))'
FROM   = $(if $(SOURCE),--source $(call quote,$(SOURCE)))
BUILD  = --profile $(call quote,$(PROFILE)) --out $(call quote,$(OUT)) --workers $(WORKERS) $(FROM)
CHOSEN = $(if $(DEVICES), --devices $(call quote,$(DEVICES)))$(if $(ONLY), --only $(call quote,$(ONLY)))
# SET="train_rows=1000 seed=3": keys of the spec, one word each.
SETS   = $(foreach pair,$(SET),--set $(call quote,$(pair)))
CODE  := src pipeline flows manifests model eval tests bench docs/*.py
TEST  := $(BIN)/python -m pytest -n 2 --dist loadgroup

export OMP_NUM_THREADS ?= 1
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup data-fineweb data-lean data-dm-math data-dm-math-tests data verify reproduce replicate results report test \
  test-faults test-scale test-slow test-interop test-kernels test-gpu bench-gpu attest test-mutations fuzz audit licences test-browser test-lean lint types bench deploy undeploy \
  prefect-env constraints docs screenshots clean $(BENCHES:%=bench-%)

help: ## print this list
	@awk 'BEGIN {FS = ":.*## "} /^## / {printf "\n%s\n", substr($$0, 4)} \
	  /^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@printf '\nBenchmarks: make bench-NAME [ARGS=…], NAME one of: %s\n' '$(BENCHES)'
	@printf 'Exit codes: make ends with 2 when a command fails; the line above it names the command'"'"'s own code.\n'
	@printf '\nPROFILE=sample|mini|paper (now %s)  OUT=%s  WORKERS=%s  SOURCE=folder, repository or URL\n' \
	  '$(PROFILE)' '$(OUT)' '$(WORKERS)'

## Start here
reproduce: data verify replicate report ## build, verify, train, score and report on embedded samples, no network
	@echo "reproduce: built and verified fineweb, lean and dm_math ($(PROFILE)), trained and scored the six models on dm_math, wrote $(OUT)/report/index.html"

test: $(STAMP) ## all tests that fit in a quarter of an hour
	$(TEST) -m "not slow and not browser and not kernels"

setup: $(STAMP) ## the virtual environment with the tested versions
	@echo "setup: $(VENV) is ready · next: source $(VENV)/bin/activate" >&2

$(STAMP): pyproject.toml constraints.txt
	@echo "setup: installs the tested versions into $(VENV); 2.2 GB with a CPU build of torch, 5.9 GB with the CUDA build that PyPI has for Linux (TORCH_INDEX=URL takes torch from another index)" >&2
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(if $(TORCH_INDEX),$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --index-url $(call quote,$(TORCH_INDEX)) torch)
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	-@$(BIN)/python -m tangobench.flows.local.server init
	@touch $@

$(INTEROP_STAMP): $(STAMP)
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(INTEROP)]'
	@touch $@

$(KERNELS_STAMP): $(STAMP)
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[gpu]'
	@touch $@

## Data
data: $(STAMP) ## all three datasets
	$(FLOW) fineweb lean dm_math $(BUILD) $(SETS)

data-fineweb: $(STAMP) ## FineWeb-Edu temporal split, deduplicated and packed
	$(FLOW) fineweb $(BUILD) $(SETS)

data-lean: $(STAMP) ## Lean Mathlib source files and proofs
	$(FLOW) lean $(BUILD) $(SETS)

data-dm-math: $(STAMP) ## DeepMind Mathematics, 168 combinations
	$(FLOW) dm_math $(BUILD) $(SETS)

data-dm-math-tests: $(STAMP) ## DeepMind Mathematics, interpolation and extrapolation (not in `data`)
	$(FLOW) dm_math_tests $(BUILD) $(SETS)

verify: $(STAMP) ## check every byte of what is in OUT against its lock and the committed lock
	$(TOOL) verify --out $(call quote,$(OUT)) --profile $(call quote,$(PROFILE)) --against committed

## Models
attest: $(STAMP) ## kernels, 200 steps and a root on this machine, as one JSON to send back (DEVICES=cuda)
	$(TOOL) attest --out $(call quote,$(OUT)) $(if $(DEVICES),--device $(call quote,$(DEVICES)))

replicate: $(STAMP) ## train and score the six models (PROFILE=mini DATASET=lean: hours; PROFILE=paper DEVICES=cuda:0,cuda:1)
	$(TOOL) replicate $(BUILD)$(if $(DATASET), --dataset $(call quote,$(DATASET)))$(CHOSEN)

results: $(STAMP) ## pack OUT/results into results/, write its tables and docs/findings.md
	$(TOOL) results pack $(if $(wildcard $(OUT)/results),$(call quote,$(OUT)/results)) --to results
	{ cat results/tables.head && $(TOOL) tables results --speed bench/results/speed.json; } > results/tables.md.new
	mv results/tables.md.new results/tables.md
	$(BIN)/python docs/findings.py

report: $(STAMP) ## one static HTML site of everything in OUT
	$(TOOL) report --out $(call quote,$(OUT))

## Prefect
deploy: $(STAMP) ## local server and worker on loopback, deployments registered
	$(BIN)/python -m tangobench.flows.local.server up

undeploy: $(STAMP) ## stop what deploy started
	$(BIN)/python -m tangobench.flows.local.server down

prefect-env: $(STAMP) ## exports for a shell: eval "$(make -s prefect-env)"
	@$(BIN)/python -m tangobench.flows.local.server env

## Checks
lint: $(STAMP) ## ruff: rules and format
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)

types: $(STAMP) ## mypy --strict over the whole package
	@rm -rf build/types && mkdir -p build/types/tangobench
	@for f in src/tangobench/* pipeline flows manifests results model eval; do \
	  ln -s $(CURDIR)/$$f build/types/tangobench/$$(basename $$f); done
	MYPYPATH=build/types $(BIN)/mypy -p tangobench

test-scale: $(STAMP) ## the driver at the size of all of FineWeb-Edu, on a simulated cluster; the audit at paper size; units on S3
	$(TEST) -n 0 -m slow -rP $(SCALE_TESTS)

test-slow: $(STAMP) ## the slow tests of no other target: deployments, sizes of models, what a build imports (minutes)
	$(TEST) -m "slow and not faults" $(addprefix --ignore=,$(SCALE_TESTS) $(LEAN_TESTS))

test-faults: $(STAMP) ## kill, corrupt, starve and lie to every builder and reader; writes the table of docs/guarantees.md (root; else SKIPS=allowed)
	@mkdir -p build
	@{ command -v nft && command -v ip && command -v faketime; } >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get -qq update \
	  && apt-get -qq install -y nftables iproute2 faketime; } || echo "without nftables, iproute2 and faketime some tests are skipped"
	$(TEST) -m faults --junitxml=build/faults.xml
	$(BIN)/python tests/support/fault_table.py build/faults.xml docs/guarantees.md $(if $(filter allowed,$(SKIPS)),--skips-allowed)

test-mutations: $(STAMP) ## break the code in sixty ways, in a copy: the tests must notice each (half an hour)
	$(BIN)/python tests/support/mutations.py $(ARGS)

fuzz: $(STAMP) ## the parsers, guided by coverage: CASES (default 100,000) per target
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[fuzz]'
	@mkdir -p build/fuzz
	@for target in url record text lean lock spec shard packed jsonl table manifest recipe math_files tokenizer card; do \
	  PYTHONPATH=tests/support $(BIN)/python tests/support/fuzz.py $$target $(CASES) > build/fuzz/$$target.log 2>&1 \
	  || { tail -n 40 build/fuzz/$$target.log; exit 1; }; echo "$$target: $$(grep -a DONE build/fuzz/$$target.log)"; done

audit: $(STAMP) ## known holes in the pinned versions (needs a network)
	@$(PYTHON) -m venv build/audit && build/audit/bin/pip install --quiet --disable-pip-version-check pip-audit
	@build/audit/bin/pip-audit --strict --no-deps --disable-pip -r constraints.txt \
	  || { echo "audit: holes found, or the advisory database is out of reach (see above)"; exit 1; }

licences: $(STAMP) ## name, version and licence of every installed package
	@$(TOOL) doctor --licences

test-gpu: $(KERNELS_STAMP) ## the kernels on this machine's GPU: the self-check against the reference, five steps
	@$(BIN)/python -c 'import sys, torch; sys.exit(None if torch.cuda.is_available() else "needs a GPU")'
	$(BIN)/python -c 'from tangobench.model.kernels.triton.check import disagreement as d; import sys; sys.exit(d("cuda"))'
	@rm -rf build/test-gpu
	$(TOOL) build dm_math --out build/test-gpu
	TANGOBENCH_KERNEL=auto $(TOOL) train --recipe sample-dm_math-tango --device cuda --out build/test-gpu --stop-at 5

bench-gpu: $(KERNELS_STAMP) ## tokens/s and memory of the published sizes on this machine's GPU
	$(TOOL) model speed --device cuda --size published --precision bf16 --lengths 256 2048 8192

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

test-kernels: $(KERNELS_STAMP) ## Triton kernels under the interpreter and as cubins for sm_80, sm_90, sm_100; no GPU
	TRITON_INTERPRET=1 $(TEST) tests/model/kernels/test_triton.py
	$(TEST) tests/model/kernels/test_cubins.py

test-lean: $(STAMP) ## a real Lean judges extractor and proofs (minutes, 4 GB; SOURCE= a Mathlib repository, FILES=all)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[lean]'
	TANGOBENCH_MATHLIB=$(call quote,$(SOURCE)) TANGOBENCH_MATHLIB_FILES='$(FILES)' $(BIN)/python -m pytest $(LEAN_TESTS) -m slow -rsP

## Speed
bench: $(filter-out bench-memory bench-flame bench-scale,$(BENCHES:%=bench-%)) ## everything side by side with its peers

bench-lean: ARGS := --scaling --write

bench-speed: $(STAMP)
	$(TOOL) model speed --lengths 256 1024 4096 --rounds 3 --save bench/results/speed.json

$(filter-out bench-speed,$(BENCHES:%=bench-%)): bench-%: $(STAMP)
	$(BIN)/python bench/$(subst -,_,$*).py $(ARGS) $(FROM)

## Housekeeping
docs: $(STAMP) ## write the pages that follow from the code: commands, errors, recipes, speed
	$(BIN)/python docs/generate.py

screenshots: $(STAMP) ## retake the pictures of README and docs (needs chromium and a built OUT)
	$(BIN)/python tests/browser/screenshots.py $(call quote,$(OUT)) docs/images

constraints: $(INTEROP_STAMP) ## write the installed versions to constraints.txt, of every extra
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[fuzz,gpu,lean,tensorboard]'
	@{ head -1 constraints.txt; $(BIN)/pip freeze --exclude-editable | grep -v ' @ ' | sed 's/+cpu//'; } > constraints.new
	@mv constraints.new constraints.txt

clean: ## remove outputs, states and caches, not the environment
	rm -rf $(call quote,$(OUT)) build .pytest_cache .mypy_cache .ruff_cache .hypothesis
