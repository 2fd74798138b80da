/* bench_net.sh: the calls of bench_tcp.c by MPI. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Of all threads of this process. */
static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int main(int argc, char **argv)
{
    static const struct {
        int bytes, rounds, calls;
    } sizes[] = {{100 * 1000 * 1000, 6, 1}, {4096, 100, 1}, {4096, 10, 100}};
    static double us[100];
    float *buf = calloc(1, (size_t)sizes[0].bytes);
    int rank, n;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    for (int k = 0; k < 6 && buf; k++) {
        const int count = sizes[k / 2].bytes / 4, rounds = sizes[k / 2].rounds;
        const int calls = sizes[k / 2].calls, gathers = k % 2;
        double cpu_begun_s = cpu_s(), sum_us = 0;
        for (int i = 0; i < rounds; i++) {
            MPI_Barrier(MPI_COMM_WORLD);
            double begun = MPI_Wtime();
            for (int j = 0; j < calls; j++)
                if (gathers)
                    MPI_Allgather(MPI_IN_PLACE, 0, MPI_FLOAT, buf, count / n, MPI_FLOAT,
                                  MPI_COMM_WORLD);
                else
                    MPI_Allreduce(MPI_IN_PLACE, buf, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
            us[i] = (MPI_Wtime() - begun) * 1e6 / calls;
            sum_us += us[i];
        }
        double cpu_us = (cpu_s() - cpu_begun_s) * 1e6 / (rounds * calls);
        qsort(us, (size_t)rounds, sizeof *us, by_value);
        if (rank == 0)
            printf("%s%s %d %.1f %.1f %.1f %.1f\n", gathers ? "all_gather" : "all_reduce",
                   calls > 1 ? "_row" : "", sizes[k / 2].bytes, us[0], us[rounds / 2],
                   sum_us / rounds, cpu_us);
    }
    MPI_Finalize();
    return 0;
}
