#!/usr/bin/env python3
"""Write test/unit/dev/schedules.h: learning rates and momenta of DeepSpeed's schedules.

    scripts/make-schedules.py >test/unit/dev/schedules.h

Rules of DeepSpeed 0.19, from its documentation and the behaviour of lr_schedules.py, as its engine
meets them: a scheduler that knows only how often it has been stepped, -1 before its first step, and
is stepped after each update. Fractions are exact; nothing is shared with lib/dev/schedule.h.
"""
import math
from fractions import Fraction as F

TABLE = []  # (case, update, lr, beta1)


def record(case, updates, rate, momentum=lambda last: None):
    for update in updates:
        last = update - 1  # the last batch that the scheduler has heard of
        TABLE.append((case, update, float(rate(last)), momentum(last)))


def gamma(last, steps, kind):
    """How far a warm-up is; None when it is over."""
    if last >= steps:
        return None
    if kind == "log":
        return math.log(last + 1) / math.log(steps)
    return F(last, steps)


def warmup(low, high, steps, kind, after):
    def rate(last):
        if last < 0:
            return low
        g = gamma(last, max(2, steps), kind)
        return low + (high - low) * (after(last) if g is None else g)
    return rate


def linear_decay(total, steps):
    return lambda last: max(F(0), F(total - last, max(1, total - steps)))


def warmup_cosine(lr, total, low, steps, end, kind):
    def rate(last):
        if last < 0:
            return 0
        g = gamma(last, max(2, steps), kind)
        if g is not None:
            return lr * (low + (1 - low) * g)
        progress = min(1, F(last - max(2, steps) + 1, max(1, total - max(2, steps))))
        return lr * (end + (1 - end) * (1 + math.cos(math.pi * progress)) / 2)
    return rate


def range_test(low, size, rise, stairs):
    def rate(last):
        x = F(last + 1, size)
        return low * (1 + rise * (math.floor(x) if stairs else x))
    return rate


def one_cycle(first, second, first_stairs, second_stairs, decay, at_end, at_top, rate, grows):
    """lr goes from at_end to at_top and back; momentum from at_top's other end. `grows`: momentum."""
    total = first + second

    def scale(last):
        at = (last + 1) % total
        up = F(at, first) if at <= first else F(total - at, second)
        stairs = first_stairs if at <= first else second_stairs
        return F(math.floor(up * stairs), stairs) if stairs else up

    def value(last):
        if last < 0:
            return at_top if grows else at_end
        if last < total:
            return at_end + (at_top - at_end) * scale(last)
        left = last - total + 1
        factor = 1 + (rate * F(left, decay) if decay else 0)
        return at_end * factor if grows else at_end / factor
    return value


D = lambda x: F(str(x))  # decimals, exactly
flat = lambda last: 1
first_updates = [0, 1, 2, 3, 7, 9, 10, 11, 12]
record("warmup_log", first_updates + [1000], warmup(0, D(0.001), 10, "log", flat))
record("warmup_linear", first_updates + [1000], warmup(D(0.0001), D(0.002), 10, "linear", flat))
record("warmup_one", [0, 1, 2, 3, 4], warmup(D(0.0001), D(0.002), 1, "log", flat))
record("decay_log", first_updates + [55, 109, 110, 111, 500],
       warmup(0, D(0.001), 10, "log", linear_decay(110, 10)))
record("decay_linear", first_updates + [55, 109, 110, 111, 500],
       warmup(D(0.0005), D(0.001), 10, "linear", linear_decay(110, 10)))
record("decay_short", [0, 1, 5, 9, 10, 11, 12, 20], warmup(0, D(0.001), 10, "linear", linear_decay(5, 10)))
record("cosine_log", first_updates + [55, 109, 110, 111, 500],
       warmup_cosine(D(0.001), 110, D(0), 10, D(0.0001), "log"))
record("cosine_linear", first_updates + [55, 109, 110, 111, 500],
       warmup_cosine(D(0.001), 110, D(0.1), 10, D(0.05), "linear"))
record("range", [0, 1, 49, 50, 51, 99, 100, 101, 1000], range_test(D(0.001), 50, D(0.5), False))
record("range_stairs", [0, 1, 49, 50, 51, 99, 100, 101, 1000], range_test(D(0.001), 50, D(0.5), True))


def cycle(case, first, second, stairs, decay, lr_rate, mom_rate):
    args = (first, second, *stairs, decay)
    momentum = one_cycle(*args, D(0.95), D(0.8), mom_rate, True)
    record(case, [0, 1, 3, 4, 5, 6, 7, 9, 10, 11, 13, 14, 15, 16, 17, 24, 200],
           one_cycle(*args, D(0.001), D(0.01), lr_rate, False), lambda last: float(momentum(last)))


cycle("cycle", 6, 6, (0, 0), 0, 0, 0)
cycle("cycle_uneven", 4, 10, (0, 0), 10, D(0.5), D(0.001))
cycle("cycle_stairs", 6, 9, (3, 4), 10, D(0.5), 0)

print("/* Written by scripts/make-schedules.py: rates and momenta of DeepSpeed's schedules. */")
print("static const struct {\n    const char *name;\n    int64_t it;\n    double lr, beta1;\n} schedule_table[] = {")
for name, it, lr, beta1 in TABLE:
    print(f'    {{"{name}", {it}, {lr!r}, {"-1" if beta1 is None else repr(beta1)}}},')
print("};")
