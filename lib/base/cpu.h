/* cpu.h: what C has no word for. */
#ifndef ZT_BASE_CPU_H
#define ZT_BASE_CPU_H

/* Between two looks at a word that another thread will write: leaves the core to its other thread meanwhile. */
static inline void zt_cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
