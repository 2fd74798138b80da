#!/usr/bin/env bash
# faults.sh PROGRAM [address|thread]: does the simulator, with or without a sanitizer, find each mistake of
# faults.cu, and nothing where it was repaired?
set -u
program=$1 san=${2:-none}
export ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=0 TSAN_OPTIONS=halt_on_error=1
export OMP_NUM_THREADS=1
unset CUSIM_LEAKS # one fault is a leak; the others end without freeing
failed=0

# finds SANITIZERS PATTERN NAME [VAR=VALUE]...: under one of these (any: all three) the output has PATTERN.
finds() {
    local where=$1 pattern=$2 name=$3 out status
    shift 3
    [[ $where = any || $where = "$san" ]] || return 0
    out=$(env "$@" timeout 60 "$program" "$name" 2>&1)
    status=$?
    if [ $status = 0 ] || ! grep -qE -- "$pattern" <<<"$out"; then
        echo "not ok $san fault $name: status $status, no \"$pattern\": ${out:0:300}"
        failed=1
        return
    fi
    out=$(env "$@" timeout 60 "$program" "$name" repaired 2>&1)
    status=$?
    if [ $status != 0 ] || [ -n "$out" ]; then
        echo "not ok $san fault $name, repaired: status $status: ${out:0:300}"
        failed=1
        return
    fi
    echo "ok $san fault $name"
}

race='ThreadSanitizer: data race'
finds thread "$race" no_first_barrier
finds thread "$race" no_second_barrier
finds thread "$race" no_syncwarp
finds thread "$race" update_across_blocks
finds thread "$race" no_fence
# Whatever the timing was: that is why delays alone are not enough.
for sched in eager lazy slow:1:2000; do
    finds thread "$race" no_wait_between_streams CUSIM_SCHED=$sched
    finds thread "$race" wait_for_an_earlier_record CUSIM_SCHED=$sched
    finds thread "$race" pinned_overwritten_early CUSIM_SCHED=$sched
    finds thread "$race" result_read_early CUSIM_SCHED=$sched
    finds thread "$race" matmul_without_wait CUSIM_SCHED=$sched
    finds thread "$race" one_workspace_for_two_streams CUSIM_SCHED=$sched
done

finds address 'AddressSanitizer: use-after-poison' past_global
finds address 'use-after-poison|heap-buffer-overflow|out of bounds' past_shared
finds address 'AddressSanitizer: (use-after-poison|heap-buffer-overflow)' past_dynamic
finds address 'misaligned address' misaligned_global
finds address 'misaligned address' misaligned_shared
finds address 'AddressSanitizer' used_after_free

finds any 'cusim: deadlock: .*: kernel divergent_barrier_kernel, block \(0,0,0\)' divergent_barrier
finds any 'cusim: lanes of a warp meet in different warp operations' divergent_shuffle
finds any 'cusim: leak: 4096 bytes of device memory' leak CUSIM_LEAKS=1
finds any 'cusim: the host touches device memory: byte 20 of 128' host_reads_device_memory CUSIM_GUARD=1
finds any 'cudaErrorMemoryAllocation' out_of_memory CUSIM_MEMORY=1M
finds any 'cudaErrorMemoryAllocation' third_allocation CUSIM_FAIL=cudaMalloc:3
finds any 'cudaErrorIllegalAddress' illegal_address CUSIM_FAIL=op:2
finds any 'cusim: cudaMemcpyAsync: a pointer is not where the kind says' copy_in_the_wrong_direction
finds any 'cusim: cudaMemcpyAsync: .* the range sticks out' copy_past_the_end
finds any 'cusim: cudaDeviceSynchronize: called from a host function' call_from_host_function
finds any 'cusim: cudaGraphCreate is not modelled' unmodelled_call
finds any 'cusim: cudaEventCreateWithFlags\(0x6\) is not modelled' unmodelled_flag
finds any 'cusim: a stream without cudaStreamNonBlocking' unmodelled_stream
finds any 'cudaErrorInvalidResourceHandle' stream_of_another_device CUSIM_DEVICES=2
exit $failed
