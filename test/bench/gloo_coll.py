"""bench_net.sh: the calls of bench_tcp.c by torch.distributed's Gloo; RANK, WORLD_SIZE, MASTER_* as usual."""
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(1)
for size, rounds, calls in ((100 * 1000 * 1000, 6, 1), (4096, 100, 1), (4096, 10, 100)):
    buf = torch.zeros(size // 4)
    part = size // 4 // world
    out = torch.zeros(part * world)
    for what in ("all_reduce", "all_gather"):
        times = []
        cpu_begun = time.process_time()
        for _ in range(rounds):
            dist.barrier()
            begun = time.perf_counter()
            for _ in range(calls):
                if what == "all_reduce":
                    dist.all_reduce(buf)
                else:
                    dist.all_gather_into_tensor(out, buf[:part])
            times.append((time.perf_counter() - begun) * 1e6 / calls)
        cpu_us = (time.process_time() - cpu_begun) * 1e6 / (rounds * calls)
        mean_us = sum(times) / len(times)
        times.sort()
        if rank == 0:
            name = what + ("_row" if calls > 1 else "")
            print(name, size, f"{times[0]:.1f} {times[len(times) // 2]:.1f} {mean_us:.1f} {cpu_us:.1f}", flush=True)
dist.destroy_process_group()
