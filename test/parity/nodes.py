#!/usr/bin/env python3
"""Trainings on several nodes: nodes.py [--quick] ZEROTRAIN [FILTER].

Nodes are made of one host, each with an agent of its own (ZT_TEST_LOCAL_NODES): shared memory inside of
them, TCP over the loopback interface between them. The bits must be those of the same ranks on one node,
where stages 0 and 1 have the same, and 2 and 3, which reduce each micro-batch (run.py).
"""
import os

from training import QUICK, Run, TYPES, end, test, text_recipe

SPLITS = ["1,1", "2,1", "2,2", "1,1,1"]


def nodes_bit_for_bit(split, precision, typed):
    ranks = sum(int(n) for n in split.split(","))
    interface = {"ZT_TCP_INTERFACE": "lo"} if split == "2,1" else {}

    def check():
        for stage in (1, 3) if QUICK else range(4):
            r = text_recipe(**typed, **{"zero_optimization.stage": stage})
            one = one if stage % 2 and not QUICK else Run(ranks, r)
            many = Run(ranks, r, env={"ZT_TEST_LOCAL_NODES": split, **interface})
            assert many.bits() == one.bits(), f"stage {stage}: {many.bits()} / {one.bits()}"
            assert len(set(one.loss)) > 1, "the loss never changed"
    test(f"nodes of {split} ranks {precision}", check)


if __name__ == "__main__":
    os.environ.pop("ZT_TEST_LOCAL_NODES", None)
    for split in SPLITS:
        for precision, typed in TYPES.items():
            if precision == "fp32" or not QUICK:
                nodes_bit_for_bit(split, precision, typed)
    end()
