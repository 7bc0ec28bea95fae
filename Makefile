# SPDX-License-Identifier: Apache-2.0
# Every target does its own set-up on a fresh Debian 12 and says what it does.
.DEFAULT_GOAL := help
SHELL := /bin/bash
JOBS ?= $(shell nproc)
# Checkouts in different folders share the compiler cache.
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1
say = @printf '\n\033[1m== %s\033[0m\n' "$(1)"

.PHONY: arm64 help build demo test parity faults example-model deployments long-context lint asan tsan clang fuzz bench format clean

help:
	@echo "make build   build/tandem, the one binary"
	@echo "make demo    fetch the small real model, start prefiller, decoder and proxy, ask a question"
	@echo "make test    build and run all tests"
	@echo "make parity  the table of every connector, TP and block size against one process (4 minutes)"
	@echo "make faults  1,000 requests of each flow while instances die and clients leave"
	@echo "make example-model  the small Qwen3-MoE of examples/qwen3-moe-*"
	@echo "make deployments    both of them with all ranks, a node a network namespace (root), against one process"
	@echo "make long-context   a request of 131,072 positions through prefiller and decoder (4 minutes)"
	@echo "make lint    formatting, layers, coroutine rules, clang-tidy"
	@echo "make asan    tests under AddressSanitizer and UndefinedBehaviorSanitizer"
	@echo "make tsan    tests under ThreadSanitizer"
	@echo "make clang   second build, with clang 19"
	@echo "make fuzz    every fuzz target for its seconds, or FUZZ_SECONDS"
	@echo "make arm64   cross build for arm64, its unit tests under qemu, and P/D between x86-64 and arm64"
	@echo "make bench   speed next to the machine's limits and to llama.cpp"
	@echo "make format  clang-format in place"

build:
	@tools/setup.sh build
	$(call say,configure and build (release))
	cmake --preset release -DTANDEM_BUILD_TESTS=OFF -B build/product >build/product-configure.log 2>&1 || { cat build/product-configure.log; exit 1; }
	cmake --build build/product --parallel $(JOBS) --target tandem
	@ln -sfn product/tandem build/tandem
	@echo "built build/tandem: $$(build/tandem --version)"

build test asan tsan clang fuzz bench: | build-folder
.PHONY: build-folder
build-folder:
	@mkdir -p build

demo: build
	@tools/setup.sh demo
	@tools/demo.sh

test: build-tests
	$(call say,tests)
	ctest --preset release

.PHONY: build-tests
build-tests: | build-folder
	@tools/setup.sh test
	$(call say,test data)
	@tools/fetch_test_data.sh
	@tools/fetch_model.sh
	$(call say,configure and build (release with tests))
	cmake --preset release >build/release-configure.log 2>&1 || { cat build/release-configure.log; exit 1; }
	cmake --build --preset release --parallel $(JOBS)

parity: build-tests
	$(call say,parity of every connector and layout with one process)
	TANDEM_BINARY=build/release/tandem python3 tests/e2e/parity_table.py

faults: build-tests
	$(call say,requests under faults at random)
	TANDEM_BINARY=build/release/tandem python3 tests/e2e/random_faults.py --connector pull
	TANDEM_BINARY=build/release/tandem python3 tests/e2e/random_faults.py --connector layerwise

example-model: build
	@tools/setup.sh test
	cmake --build build/product --parallel $(JOBS) --target tandem-make-model
	$(call say,a small Qwen3-MoE)
	@tools/make_example_model.sh build/product

deployments: example-model
	$(call say,the two deployments of the guides)
	TANDEM_BINARY=build/tandem python3 tests/e2e/deployments_table.py

long-context: example-model
	$(call say,131072 positions through prefiller and decoder)
	TANDEM_BINARY=build/tandem TANDEM_MAKE_MODEL=build/product/tools/make_model/tandem-make-model \
	  python3 tests/e2e/long_context.py

lint:
	@tools/setup.sh lint
	@tools/lint.sh

asan tsan:
	@tools/setup.sh $@
	@tools/fetch_test_data.sh
	$(call say,configure and build ($@))
	cmake --preset $@ >build/$@-configure.log 2>&1 || { cat build/$@-configure.log; exit 1; }
	cmake --build --preset $@ --parallel $(JOBS)
	$(call say,tests under $@)
	ASAN_SYMBOLIZER_PATH=$$(command -v llvm-symbolizer-19 addr2line | head -1) UBSAN_OPTIONS=print_stacktrace=1 \
	  ctest --preset $@ --label-regex fast

clang:
	@tools/setup.sh lint
	$(call say,second build: clang 19)
	cmake --preset clang >build/clang-configure.log 2>&1 || { cat build/clang-configure.log; exit 1; }
	cmake --build --preset clang --parallel $(JOBS)

fuzz:
	@tools/setup.sh asan
	@$(if $(FUZZ_SECONDS),FUZZ_SECONDS=$(FUZZ_SECONDS)) tools/fuzz.sh

arm64: build
	cmake --build build/product --parallel $(JOBS) --target tandem-make-model
	@tools/setup.sh arm64
	@tools/fetch_arm64_root.sh
	@tools/fetch_test_data.sh tokenizers
	$(call say,configure and cross-build (arm64, with tests))
	cmake --preset arm64 >build/arm64-configure.log 2>&1 || { cat build/arm64-configure.log; exit 1; }
	cmake --build --preset arm64 --parallel $(JOBS)
	$(call say,unit tests under qemu)
	ctest --preset arm64 --label-regex fast
	$(call say,prefill on one architecture and decode on the other)
	TANDEM_BINARY=build/tandem TANDEM_ARM64_BINARY=build/arm64/tandem-qemu python3 tests/e2e/arm64.py

bench:
	@tools/setup.sh bench
	@tools/fetch_model.sh
	$(call say,configure and build (release with benchmarks))
	cmake --preset bench >build/bench-configure.log 2>&1 || { cat build/bench-configure.log; exit 1; }
	cmake --build --preset bench --parallel $(JOBS)
	@tools/bench.sh

format:
	@tools/setup.sh lint
	git ls-files '*.h' '*.cc' | xargs clang-format-19 -i

clean:
	rm -rf build
