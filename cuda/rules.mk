# CUDA: libzerotrain_cuda.so by nvcc, and the same sources on the simulator (test/cusim). A part of the
# Makefile.
#   $B/libzerotrain_cuda.so         for GPUs; where nvcc and nccl.h are found, or CUDA=1
#   $B/cusim/libzerotrain_cuda.so   the sources as C++, linked with the simulator: needs only CUDA's headers
#   $B/cusim/fake/                  the simulator as libcudart.so.13, libcublasLt.so.13, libnccl.so.2, for the
#                                   library that nvcc built
#   $B/cusim/test/NAME              test/cuda/test_NAME.c or .cu on the simulator
#   $B/cuda/test/NAME               the same on a GPU (make cuda-tests)
# CUDA_HOME: the toolkit. NCCL_HOME: NCCL's folder where it is in neither the toolkit's nor the system's, with include/ and
# lib/, as in the wheel that pip installs: make NCCL_HOME=$(python3 -c 'import nvidia.nccl as n; print(n.__path__[0])')

CUDA_HOME  ?= $(or $(firstword $(wildcard /usr/local/cuda)),$(patsubst %/bin/nvcc,%,$(shell command -v nvcc)))
NVCC       ?= $(wildcard $(CUDA_HOME)/bin/nvcc)
CUDA_HOME  := $(or $(CUDA_HOME),/usr/local/cuda)
CUDA_INC   := $(CUDA_HOME)/include
NCCL_HOME  ?=
NCCL_H     := $(firstword $(wildcard $(addsuffix /include/nccl.h,$(or $(NCCL_HOME),$(CUDA_HOME) /usr))))
ifneq ($(if $(NCCL_H),,$(NCCL_HOME)),)
$(error NCCL_HOME: there is no $(NCCL_HOME)/include/nccl.h)
endif
CUDA_ISYSTEM := $(patsubst %,-isystem %/include,$(NCCL_HOME) $(CUDA_HOME))
CUDA       ?= $(if $(and $(NVCC),$(NCCL_H)),1,0)
CUDA_ARCHS ?= 80 90 100

# Sanitizers see nothing of a GPU: only the simulator is built with them.
HAVE_CUDA  := $(if $(filter 1,$(CUDA)),$(if $(SAN),,1))
HAVE_CUSIM := $(and $(wildcard $(CUDA_INC)/cuda_runtime_api.h),$(wildcard $(CUDA_INC)/cublasLt.h),$(NCCL_H))

CUDA_CU    := $(sort $(wildcard cuda/*.cu))
CUDA_C     := $(sort $(wildcard cuda/*.c))
CUSIM_CPP  := $(sort $(wildcard test/cusim/*.cpp))
TESTS_CU   := $(sort $(wildcard test/cuda/test_*.cu))
TESTS_CU_C := $(sort $(wildcard test/cuda/test_*.c))
CUDA_NAMES := $(patsubst test/cuda/%.cu,%,$(TESTS_CU)) $(patsubst test/cuda/%.c,%,$(TESTS_CU_C))

# What was compiled with other flags is compiled again: a file of them that changes when they do.
define remember
	@mkdir -p $(@D)
	@echo '$1' | cmp -s - $@ || echo '$1' >$@
endef
$B/nv/flags: FORCE
	$(call remember,$(NVFLAGS))
$B/cusim/flags: FORCE
	$(call remember,$(CUSIM_FLAGS) $(SIM_SAN))
FORCE:

# What the library needs of lib/: position independent, its names hidden, taken from an archive.
CUDA_LIB_C := $(sort $(wildcard lib/base/*.c lib/dev/*.c lib/coll/*.c))
CUDA_LIB_C := $(filter-out $(ISA_SRCS),$(CUDA_LIB_C))
CUDA_FLAGS := -fPIC -fvisibility=hidden $(CUDA_ISYSTEM)

$B/pic/%.o: %.c $B/flags
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) $(CUDA_FLAGS) -MMD -MP -c -o $@ $<

$B/pic/libzerotrain.a: $(CUDA_LIB_C:%.c=$B/pic/%.o)
	rm -f $@ && $(AR) rcs $@ $^

# ---- For GPUs ----

GENCODE  := $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$a,code=sm_$a) \
            -gencode arch=compute_$(lastword $(CUDA_ARCHS)),code=compute_$(lastword $(CUDA_ARCHS))
NVFLAGS  := -std=c++17 -O3 -lineinfo $(GENCODE) -cudart shared -Ilib -Itest -Icuda \
            -Xcompiler -Wall,-fPIC,-fvisibility=hidden
# The same arithmetic as on the CPU (lib/dev/adam.h, lib/dev/control.h).
$B/nv/cuda/optim.o $B/nv/cuda/control.o: NVMAD := -fmad=false
CUDA_LINK = -Wl,-Bsymbolic,-z,defs,--enable-new-dtags \
            $(foreach d,$(NCCL_HOME:%=%/lib) $(CUDA_HOME)/lib64,-Wl$(comma)-rpath$(comma)$d -L$d)

$B/nv/%.o: %.cu $B/nv/flags
	@mkdir -p $(@D)
	$(NVCC) $(NVFLAGS) $(WERROR:%=-Xcompiler %) $(NVMAD) -MMD -MP -MF $(@:.o=.d) -c -o $@ $<

$B/libzerotrain_cuda.so: $(CUDA_CU:%.cu=$B/nv/%.o) $(CUDA_C:%.c=$B/pic/%.o) $B/pic/libzerotrain.a cuda/exports.map
	$(CXX) -shared -o $@ $(filter %.o %.a,$^) $(CUDA_LINK) -Wl,--as-needed,--version-script=cuda/exports.map \
	    -lcudart -lcublasLt -l:libnccl.so.2 -lm -pthread

all: $(if $(HAVE_CUDA),$B/libzerotrain_cuda.so)
cuda: $(if $(HAVE_CUDA),$B/libzerotrain_cuda.so)

$B/cuda/test/%: $B/nv/test/cuda/%.o $(CUDA_CU:%.cu=$B/nv/%.o) $(CUDA_C:%.c=$B/pic/%.o) $B/libzerotrain.a
	@mkdir -p $(@D)
	$(CXX) $(LDFLAGS) -o $@ $^ $(CUDA_LINK) -lcudart -lcublasLt -l:libnccl.so.2 $(LDLIBS)
$B/nv/test/cuda/%.o: test/cuda/%.c
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) $(CUDA_ISYSTEM) -MMD -MP -c -o $@ $<
cuda-tests: $(CUDA_NAMES:%=$B/cuda/test/%)

# ---- On the simulator ----

# The simulator itself is not compiled for ThreadSanitizer, it tells it what CUDA promises (sim.h).
# -fno-builtin: copies go through the sanitizers' functions. Kernels are optimised less with sanitizers,
# as all else.
CUSIM_SAN   := $(if $(filter address,$(SAN)),-fsanitize=address$(comma)undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
CUSIM_FLAGS := -std=c++20 $(if $(SAN),-g1 -O1,-g -O2) -ffp-contract=off -fno-math-errno -fno-trapping-math -pthread \
               -fno-strict-aliasing -Wall -Wextra -Wno-unknown-pragmas -Wno-attributes \
               -fPIC $(CUDA_ISYSTEM) -DZT_CUSIM -Ilib -Itest -Icuda $(CUSIM_SAN)
KERNEL_SAN  := $(if $(filter thread,$(SAN)),-fsanitize=thread -Wno-tsan)
SIM_SAN     := $(if $(filter thread,$(SAN)),-DCUSIM_TSAN) -fno-builtin -fopenmp

# What switches between CUDA's threads touches only its own memory, a fifth of all time if every access is looked at.
$B/cusim/test/cusim/exec.o $B/cusim/test/cusim/fiber.o: EXEC_SAN := $(if $(filter address,$(SAN)),-fno-sanitize=undefined \
    --param asan-instrument-reads=0 --param asan-instrument-writes=0 --param asan-stack=0) $(if $(SAN),-O2)

$B/cusim/%.o: %.cu $B/cusim/flags
	@mkdir -p $(@D)
	$(CXX) -x c++ $(CUSIM_FLAGS) $(WERROR) $(KERNEL_SAN) -MMD -MP -c -o $@ $<

$B/cusim/%.o: %.cpp $B/cusim/flags
	@mkdir -p $(@D)
	$(CXX) $(CUSIM_FLAGS) $(WERROR) $(SIM_SAN) $(EXEC_SAN) -MMD -MP -c -o $@ $<

# A function for each one that a header of CUDA declares, which refuses by name; those that the simulator
# has take its place.
$B/cusim/unmodelled_%.c: test/cusim/unmodelled.sh $(CUDA_INC)/cuda_runtime_api.h
	@mkdir -p $(@D)
	test/cusim/unmodelled.sh $* $(CUDA_INC) $(NCCL_H) >$@
$B/cusim/unmodelled_%.o: $B/cusim/unmodelled_%.c
	$(CC) -std=c11 -fPIC -c -o $@ $<
.PRECIOUS: $B/cusim/unmodelled_%.c

# objects of one library: cudart has the kernels' executor, and all that is not of another.
cusim_objs    = $(patsubst %.cpp,$B/cusim/%.o,$(filter test/cusim/$1%,$(CUSIM_CPP))) $B/cusim/unmodelled_$1.o
CUSIM_BLASLT := $(call cusim_objs,blaslt)
CUSIM_NCCL   := $(call cusim_objs,nccl) $(patsubst %.cpp,$B/cusim/%.o,$(filter test/cusim/comm%,$(CUSIM_CPP)))
CUSIM_CUDART := $(filter-out $(CUSIM_BLASLT) $(CUSIM_NCCL),$(CUSIM_CPP:%.cpp=$B/cusim/%.o)) $B/cusim/unmodelled_cudart.o
CUSIM_OBJS   := $(CUSIM_CUDART) $(CUSIM_BLASLT) $(CUSIM_NCCL)
CUSIM_KERNEL := $(CUDA_CU:%.cu=$B/cusim/%.o)
# The compiler of C++ links, and does not know the OpenMP of clang.
CUSIM_OMP    := $(if $(and $(findstring clang,$(CC)),$(filter -fopenmp,$(OPENMP))),-l:libomp.so.5)
CUSIM_LIBS   := $(CUSIM_OMP) -ldnnl -lgomp -lm -pthread -ldl

$B/cusim/libzerotrain_cuda.so: $(CUSIM_KERNEL) $(CUDA_C:%.c=$B/pic/%.o) $(CUSIM_OBJS) $B/pic/libzerotrain.a cuda/exports.map
	$(CXX) -shared $(LDFLAGS) -o $@ $(filter %.o %.a,$^) -Wl,-Bsymbolic,--version-script=cuda/exports.map $(CUSIM_LIBS)

$B/cusim/test/%: $B/cusim/test/cuda/%.o $(CUSIM_KERNEL) $(CUDA_C:%.c=$B/pic/%.o) $(CUSIM_OBJS) $B/libzerotrain.a
	@mkdir -p $(@D)
	$(CXX) $(LDFLAGS) -o $@ $^ $(LDLIBS) $(CUSIM_LIBS)
$B/cusim/test/cuda/%.o: test/cuda/%.c
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) -DZT_CUSIM $(CUDA_ISYSTEM) -MMD -MP -c -o $@ $<

$B/cusim/faults: $B/cusim/test/cusim/faults.o $(CUSIM_OBJS)
	$(CXX) $(LDFLAGS) -o $@ $^ $(CUSIM_LIBS)

# The libraries that the one built by nvcc wants, each with its name and symbol versions. Kernels are found by
# their symbols, so these are not hidden.
CUDA_MAJOR := $(if $(HAVE_CUSIM),$(shell sed -n 's/^.define CUDART_VERSION  *\([0-9]*\)[0-9]\{3\}$$/\1/p' $(CUDA_INC)/cuda_runtime_api.h))
FAKE       := $B/cusim/fake
FAKES      := $(FAKE)/libcudart.so.$(CUDA_MAJOR) $(FAKE)/libcublasLt.so.$(CUDA_MAJOR) $(FAKE)/libnccl.so.2
$(FAKE)/libcudart.so.%: $(CUSIM_CUDART) $(CUSIM_KERNEL) $B/pic/libzerotrain.a
	@mkdir -p $(@D)
	@echo 'libcudart.so.$* { global: cuda*; __cuda*; };' >$@.map
	$(CXX) -shared -o $@ $^ -Wl,-soname,$(@F),-z,defs,--version-script=$@.map $(CUSIM_LIBS)
$(FAKE)/libcublasLt.so.%: $(CUSIM_BLASLT) $(FAKE)/libcudart.so.%
	@echo 'libcublasLt.so.$* { global: cublasLt*; };' >$@.map
	$(CXX) -shared -o $@ $^ -Wl,-soname,$(@F),-z,defs,--version-script=$@.map $(CUSIM_LIBS)
$(FAKE)/libnccl.so.2: $(CUSIM_NCCL) $(FAKE)/libcudart.so.$(CUDA_MAJOR)
	$(CXX) -shared -o $@ $^ -Wl,-soname,$(@F),-z,defs $(CUSIM_LIBS)
.PRECIOUS: $(FAKE)/libcudart.so.%

# Say why there is no library for GPUs, or no simulator; or nothing.
no-cuda:
	@:$(if $(HAVE_CUDA),,; echo "nvcc is not in $(CUDA_HOME), or nccl.h neither there nor in /usr (NCCL_HOME names its folder), or CUDA=0 is given")
no-cusim:
	@:$(if $(HAVE_CUSIM),,; echo "cuda_runtime_api.h, cublasLt.h or nccl.h is not in $(CUDA_INC)")

ifneq ($(HAVE_CUSIM),)
CUSIM_TESTS := $(CUDA_NAMES:%=$B/cusim/test/%) $B/cusim/faults
endif
cusim: $(if $(HAVE_CUSIM),$(CUSIM_TESTS) $B/cusim/libzerotrain_cuda.so $(if $(HAVE_CUDA),$(FAKES)))

-include $(wildcard $B/pic/*/*.d $B/pic/*/*/*.d $B/nv/*/*.d $B/nv/*/*/*.d $B/cusim/*/*.d $B/cusim/*/*/*.d)
.PHONY: cuda cusim no-cuda no-cusim cuda-tests FORCE
