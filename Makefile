# zerotrain. `make`, `make test`, `make check`, `make bench`, `make install`.
# CUDA=0|1: without or with libzerotrain_cuda.so; by default it is built where nvcc and nccl.h are found.
# CUDA_ARCHS="80 90": the GPUs it is built for. CUDA_HOME, NCCL_HOME: where CUDA and NCCL are (cuda/rules.mk).
# URING=0|1: without or with io_uring for offload to NVMe; by default with it where liburing.h is found.
# SAN=address|thread: sanitizer build, in its own folder. `make SAN=fuzzer CC=clang-14 fuzzers`: libFuzzer
# targets (build/fuzzer/fuzz/NAME; their corpora are tests in every build).
# WERROR=-Werror: warnings are errors, as for the tests and `make check`; not by default, as a newer compiler warns of more.

comma   := ,
SAN     ?=
ifeq ($(origin CC),default)
CC      := gcc
endif
PREFIX  ?= /usr/local
OPT     ?= -O2
WERROR  ?=
ARCH    := $(shell uname -m)
B       ?= build$(if $(SAN),/$(SAN))

# Program and CUDA part must have the same tables and the same queue: of headers with equal contents.
VERSION := $(shell sed -n 's/^\#define ZT_VERSION "\(.*\)"/\1/p' lib/base/version.h)
SEAMS   := $(sort $(wildcard lib/base/*.h lib/dev/*.h lib/coll/*.h))
BUILD   := $(VERSION)-$(shell cat $(SEAMS) | sha256sum | cut -c 1-12)

CPPFLAGS += -D_GNU_SOURCE -DZT_BUILD='"$(BUILD)"' -Ilib -Itest
WARN     := -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion $(WERROR) -Wvla -Wstrict-prototypes \
            -Wmissing-prototypes -Wwrite-strings -Wformat=2 -Wno-format-nonliteral
# clang would fail where it cannot follow an `omp simd`: v2 and -O1 are slower, not wrong.
# Constants are enumerators here, of which clang 19 with -Wextra does not want sums with floating-point numbers.
ifneq ($(findstring clang,$(CC)),)
WARN     += -Wno-pass-failed -Wno-enum-float-conversion
endif
CFLAGS   += -std=c11 -g $(OPT) -ffp-contract=off -fno-math-errno -fno-trapping-math -pthread $(WARN)
LDFLAGS  += -Wl,--build-id # by which hosts of a job know that they run the same program
SSH2     := $(or $(shell pkg-config --libs libssh2 2>/dev/null),-lssh2)
CPPFLAGS += $(shell pkg-config --cflags libssh2 2>/dev/null)
LDLIBS   += -ldnnl -lssl -lcrypto -lyaml -ljansson -lxxhash -lm -pthread -ldl $(SSH2)

# Offload to NVMe goes by io_uring where liburing is there; without it by threads.
URING    ?= $(shell echo '\#include <liburing.h>' | $(CC) -E - >/dev/null 2>&1 && echo 1)
ifeq ($(URING),1)
CPPFLAGS += -DZT_HAVE_URING
LDLIBS   += -luring
endif

# Sanitizers tell lines: -g1 has them, and AddressSanitizer's code compiles in two thirds of the time.
# ThreadSanitizer does not know libgomp: kernels then run without OpenMP. clang's libomp serves oneDNN, too.
SIMD_ONLY := -fopenmp-simd -Wno-unknown-pragmas
ifeq ($(origin OPENMP),undefined)
ifneq ($(filter thread fuzzer,$(SAN)),)
OPENMP  := $(SIMD_ONLY)
else ifneq ($(shell echo 'int main(void) { return 0; }' | $(CC) -fopenmp -xc - -o /dev/null 2>&1),)
$(warning $(CC) has no OpenMP (clang wants libomp-dev): a worker computes with one thread)
OPENMP  := $(SIMD_ONLY)
else
OPENMP  := -fopenmp
endif
endif
CFLAGS  += $(OPENMP)
LDFLAGS += $(OPENMP)
ifeq ($(SAN),thread)
CFLAGS  += -fsanitize=thread -O1 -g1
LDFLAGS += -fsanitize=thread
else ifeq ($(SAN),address)
CFLAGS  += -fsanitize=address,undefined -fno-sanitize-recover=undefined -O1 -g1 -fno-omit-frame-pointer
LDFLAGS += -fsanitize=address,undefined
else ifeq ($(SAN),fuzzer)
CFLAGS  += -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined -O1
LDFLAGS += -fsanitize=address,undefined
endif

# Kernels are compiled once per instruction set and chosen at run time. With a sanitizer loops are not made of vectors
# anyway, and -O3 takes twice the time to compile; but -O1 sees less of what is initialized.
ifeq ($(ARCH),x86_64)
ISAS      := v2 v3 v4
ISA_v2    := -march=x86-64-v2
ISA_v3    := -march=x86-64-v3
ISA_v4    := -march=x86-64-v4 -mprefer-vector-width=512
else
ISAS      := base
ISA_base  :=
endif
ISA_SRCS := $(sort $(wildcard lib/base/isa_*.c lib/dev/cpu/isa_*.c lib/coll/isa_*.c))
LIB_SRCS := $(sort $(filter-out $(ISA_SRCS),$(wildcard lib/*/*.c lib/dev/cpu/*.c)))
CMD_SRCS := $(sort $(wildcard cmd/*.c))
LIB_OBJS := $(LIB_SRCS:%.c=$B/%.o) $(foreach i,$(ISAS),$(ISA_SRCS:%.c=$B/%.$i.o))
CMD_OBJS := $(CMD_SRCS:%.c=$B/%.o)
FUZZ     := $(patsubst test/fuzz/fuzz_%.c,%,$(sort $(wildcard test/fuzz/fuzz_*.c)))
TESTS    := $(patsubst test/unit/%.c,$B/test/%,$(sort $(wildcard test/unit/*/test_*.c))) \
            $(FUZZ:%=$B/test/fuzz/%)

all: $B/zerotrain

include cuda/rules.mk

$B/zerotrain: $(CMD_OBJS) $B/libzerotrain.a
	$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

$B/lib/coll/backend.o $B/pic/lib/coll/backend.o $B/pic/cuda/backend.o: $(SEAMS)

$B/libzerotrain.a: $(LIB_OBJS)
	rm -f $@ && $(AR) rcs $@ $^

# What was compiled with other flags is compiled again, so also what had warnings that are errors now.
$B/flags: FORCE
	$(call remember,$(CC) $(CFLAGS))

$B/%.o: %.c $B/flags
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<

define isa_rule
$B/%.$1.o: %.c $B/flags
	@mkdir -p $$(@D)
	$$(CC) $$(CPPFLAGS) $$(CFLAGS) $$(if $$(SAN),-Wno-maybe-uninitialized,-O3) $$(ISA_$1) -DZT_ISA=$1 -MMD -MP -c -o $$@ $$<
endef
$(foreach i,$(ISAS),$(eval $(call isa_rule,$i)))

# Tests are compiled less, in half the time: what they test is in the library.
TEST_OPT := -O1 -g1
$B/test/%: test/unit/%.c $B/libzerotrain.a $B/flags
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) $(TEST_OPT) -MMD -MP -MF $@.d $(LDFLAGS) -o $@ $< $B/libzerotrain.a $(LDLIBS)

# A fuzz target over its corpus, and as a libFuzzer program.
$B/test/fuzz/%: test/fuzz/fuzz_%.c test/fuzz/run_corpus.c $B/libzerotrain.a
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) $(TEST_OPT) -Wno-missing-prototypes -DZT_CORPUS='"test/fuzz/corpus/$*"' $(LDFLAGS) -o $@ \
	    $(filter %.c %.a,$^) $(LDLIBS)

$B/fuzz/%: test/fuzz/fuzz_%.c $B/libzerotrain.a
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) -Wno-missing-prototypes $(LDFLAGS) -fsanitize=fuzzer -o $@ $^ $(LDLIBS)

fuzzers: $(FUZZ:%=$B/fuzz/%)

# Every libFuzzer target from its corpus, FUZZ_SECONDS each. What it finds goes to build/fuzz-found; a
# new input worth keeping is copied to test/fuzz/corpus by hand.
FUZZ_SECONDS ?= 30
FUZZ_CC      ?= clang-14
fuzz:
	@$(MAKE) -s SAN=fuzzer CC=$(FUZZ_CC) fuzzers
	@mkdir -p build/fuzz-found $(FUZZ:%=build/fuzz-corpus/%)
	@for f in $(FUZZ); do \
	    echo "== fuzz $$f, $(FUZZ_SECONDS) s"; \
	    build/fuzzer/fuzz/$$f -max_total_time=$(FUZZ_SECONDS) -rss_limit_mb=2048 -timeout=20 -print_final_stats=1 \
	        -artifact_prefix=build/fuzz-found/$$f- build/fuzz-corpus/$$f test/fuzz/corpus/$$f \
	        >build/fuzz-found/$$f.log 2>&1 || { tail -n 40 build/fuzz-found/$$f.log; exit 1; }; \
	    grep -E 'number_of_executed_units|new_units_added' build/fuzz-found/$$f.log; \
	done

# Benchmarks are built along, so that they keep up with the interfaces; once is enough.
tests: $(TESTS) $(if $(SAN),,benches) $(CUSIM_TESTS)

# tests-of-LAYER: those of one.
$(foreach l,$(sort $(notdir $(wildcard test/unit/*))),$(eval tests-of-$l: $(filter $B/test/$l/%,$(TESTS))))

# Run one layer's unit tests: make unit T=plan
unit: $(if $T,$(filter $B/test/$T/%,$(TESTS)),$(TESTS))
	@for t in $^; do $$t || exit 1; done

# The whole suite; `make test SUITES="unit cli"` runs parts of it. test-long: every combination.
test:
	test/run.sh $(SUITES)
test-long:
	test/run.sh --long $(SUITES)

# Only what concerns CUDA, on the simulator: no GPU is needed.
test-cuda-sim:
	test/run.sh cuda

check:
	scripts/check.sh

# All that is C, by another compiler, for its warnings only: make syntax CC=clang-14 B=build/clang
SYNTAX := $(LIB_SRCS) $(CMD_SRCS) $(wildcard test/unit/*/*.c test/fuzz/*.c test/bench/bench_*.c test/fault/*.c) \
          $(if $(HAVE_CUSIM),$(CUDA_C) $(TESTS_CU_C))
SYNTAX := $(SYNTAX:%.c=$B/syntax/%.ok) $(foreach i,$(ISAS),$(ISA_SRCS:%.c=$B/syntax/%.$i.ok))
check_syntax = @mkdir -p $(@D) && $(CC) $(CPPFLAGS) $(CFLAGS) $1 -fsyntax-only -MMD -MP -MT $@ -MF $@.d $< && touch $@

$B/syntax/test/fuzz/%.ok: test/fuzz/%.c
	$(call check_syntax,-Wno-missing-prototypes -DZT_CORPUS='""')
$B/syntax/cuda/%.ok: cuda/%.c
	$(call check_syntax,$(CUDA_ISYSTEM))
$B/syntax/test/cuda/%.ok: test/cuda/%.c
	$(call check_syntax,$(CUDA_ISYSTEM) -DZT_CUSIM)
$B/syntax/%.ok: %.c
	$(call check_syntax)
$(foreach i,$(ISAS),$(eval $B/syntax/%.$i.ok: %.c; $$(call check_syntax,$(ISA_$i) -DZT_ISA=$i)))

syntax: $(SYNTAX)

# Static analysis, one process a file: in one process clang-tidy carries facts from file to file, and
# clang-analyzer-valist sees errors that are not there. ISA kernels are looked at as the widest. TIDY_NODES: how far
# the paths through a function are followed; clang's own limit, 225000, takes up to 3.6 times as long.
TIDY     ?= clang-tidy
TIDY_NODES ?= 60000
TIDIED   := $(patsubst %.c,build/tidy/%.ok,$(LIB_SRCS) $(ISA_SRCS) $(CMD_SRCS))
WIDEST   := $(lastword $(ISAS))
TIDY_ISA := $(ISA_$(WIDEST)) -DZT_ISA=$(WIDEST)
build/tidy/%.ok: %.c .clang-tidy $(wildcard lib/*/*.h lib/*/*/*.h cmd/*.h)
	@mkdir -p $(@D)
	@$(TIDY) --quiet $< -- -std=c11 $(CPPFLAGS) $(if $(filter $(ISA_SRCS),$<),$(TIDY_ISA)) \
	    -Xclang -analyzer-config -Xclang max-nodes=$(TIDY_NODES) >$@.log 2>&1 && touch $@ || { grep -v 'warnings\? generated' $@.log; exit 1; }

tidy: $(TIDIED)

# Measurements, never pass or fail: ratios within one run.
BENCHES := $(patsubst test/bench/%.c,$B/bench/%,$(sort $(wildcard test/bench/bench_*.c)))
$B/bench/%: test/bench/%.c $B/libzerotrain.a $B/flags
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) $(LDFLAGS) -o $@ $< $B/libzerotrain.a $(LDLIBS)

# Kernels, collectives, plans, what offload and checkpoints cost, whole models; the last against PyTorch and DeepSpeed where
# scripts/bench-venv.sh could install them. BENCH_ARGS: of test/bench/bench_models.py.
benches: $(BENCHES)

bench: all benches
	@for b in $(BENCHES); do echo "== $$b"; ZT_CUDA_LIB=$${ZT_CUDA_LIB-$B/libzerotrain_cuda.so} $$b || exit 1; done
	test/bench/bench_plan.sh $B/zerotrain
	test/bench/bench_offload.py $B/zerotrain
	test/bench/bench_ckpt.py --dir $B $B/zerotrain
	@scripts/bench-venv.sh || echo "models are measured without PyTorch"
	test/bench/bench_net.sh $B/bench/bench_tcp
	test/bench/bench_models.py $(BENCH_ARGS) $B/zerotrain

# 10,000 steps without growth of memory, handles or threads: minutes, so not part of `make test`.
soak: all
	test/soak/run.py $B/zerotrain

# What git has, as zerotrain-VERSION.tar.gz.
dist:
	@mkdir -p build
	git archive --format=tar.gz --prefix=zerotrain-$(VERSION)/ -o build/zerotrain-$(VERSION).tar.gz HEAD
	@echo build/zerotrain-$(VERSION).tar.gz

install: all
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/share/man/man1 \
	    $(DESTDIR)$(PREFIX)/share/man/man5 $(DESTDIR)$(PREFIX)/share/zerotrain/recipes \
	    $(DESTDIR)$(PREFIX)/share/zerotrain/hostfiles \
	    $(DESTDIR)$(PREFIX)/share/bash-completion/completions
	install -m 755 $B/zerotrain $(DESTDIR)$(PREFIX)/bin/
	if [ -e $B/libzerotrain_cuda.so ]; then install -d $(DESTDIR)$(PREFIX)/lib/zerotrain && \
	    install -m 755 $B/libzerotrain_cuda.so $(DESTDIR)$(PREFIX)/lib/zerotrain/; fi
	install -m 644 man/*.1 $(DESTDIR)$(PREFIX)/share/man/man1/
	install -m 644 man/*.5 $(DESTDIR)$(PREFIX)/share/man/man5/
	install -m 644 recipes/*.yaml $(DESTDIR)$(PREFIX)/share/zerotrain/recipes/
	install -m 644 hostfiles/* $(DESTDIR)$(PREFIX)/share/zerotrain/hostfiles/
	install -m 755 scripts/sweep-stages.sh $(DESTDIR)$(PREFIX)/share/zerotrain/
	install -m 644 scripts/completion.bash \
	    $(DESTDIR)$(PREFIX)/share/bash-completion/completions/zerotrain

clean:
	rm -rf build

-include $(LIB_OBJS:.o=.d) $(CMD_OBJS:.o=.d) $(TESTS:=.d) $(wildcard $(SYNTAX:=.d))

.PHONY: all tests test-cuda-sim unit fuzzers fuzz test test-long check syntax tidy benches bench soak dist install clean
.SECONDARY:
