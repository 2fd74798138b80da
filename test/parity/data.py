"""What trainings make of their data: masks, documents, epochs, weights of files, evaluation (of run.py)."""
import struct

from training import EXPECTED, EXPECTEDS, MODELS, QUICK, REPO, Run, close, recipe, test, text_recipe


def fixture_masks(fixture):
    """Case B03 (c): sequences with unequal numbers of targets, one with none; the same numbers for
    every split."""
    want = EXPECTEDS[fixture]["masked"]
    mask = bytes([1] + [x for row in want["mask"] for x in row])
    splits = [(2, 1, 2)] if QUICK else [(1, 4, 1), (2, 2, 1), (4, 1, 1), (1, 1, 4), (2, 1, 2)]

    def check(ranks, micro, accum, stage):
        r = recipe(micro, accum, 6, fixture, **{"zero_optimization.stage": stage,
                                                "data.train_mask": "m", "train.steps": 3})
        run, split = Run(ranks, r, {"m": mask}), f"ranks={ranks} micro={micro} accum={accum}"
        close(run.loss, [want["loss"]], 1e-5, f"{split}: loss")
        assert abs(run.norm[0] - want["grad_norm"]) <= 1e-4 * want["grad_norm"], f"{split}: norm {run.norm[0]}"
        assert run.steps[0]["targets"] == want["valid"], f"{split}: {run.steps[0]['targets']} targets"
        return run

    def every_split(stage):
        runs = [check(*s, stage) for s in splits]
        for s, run in zip(splits, runs):
            close(run.loss, runs[0].loss, 1e-5, "loss of ranks=%d micro=%d accum=%d" % s)

    for stage in (3,) if QUICK else range(4):
        test(f"fixture {fixture} masked, by any split, stage={stage}", lambda s=stage: every_split(s))


def all_masked():
    """Nothing to learn from: no NaN, nothing changes, and it is said."""
    def check(ranks, stage):
        files = {"m": bytes(25)}
        base = {"zero_optimization.stage": stage, "data.train_mask": "m"}
        none = Run(ranks, recipe(4 // ranks, 1, 6, **base, **{"train.steps": 0}), files)
        run = Run(ranks, recipe(4 // ranks, 1, 6, **base, **{"train.steps": 3}), files)
        assert run.digest == none.digest, "the state changed"
        for x in run.steps:
            assert x["loss"] is None and x["targets"] == 0 and x["grad_norm"] == 0, f"{x}"
        assert run.steps[-1]["skipped"] == 3, "not counted as skipped"
        assert run.text.count("every target of the batch is masked") == 1, "not said once"
    for ranks, stage in ((2, 3),) if QUICK else ((1, 0), (2, 1), (2, 2), (4, 3)):
        test(f"every target masked ranks={ranks} stage={stage}", lambda r=ranks, s=stage: check(r, s))


def packed_documents():
    """Documents packed into one sample learn as samples of their own do."""
    docs = [b"the cat sat.", b"on a mat: 12", b"3 + 4 = 7..\n"]

    def check(model, bf16):
        base = {"model": {**MODELS[model], "vocab_size": 256, "n_positions": 36}, "train.steps": 5, "data.train": "docs", "data.shuffle": False,
                "bf16.enabled": bf16}
        files = {f"docs/{i}": d for i, d in enumerate(docs)}
        single = Run(1, recipe(3, 1, 11, **base), files)  # 11 targets each
        # 36 tokens, and one more that only says where the last document ends
        packed = Run(1, recipe(1, 1, 36, **base, **{"data.packing": "documents"}), {**files, "docs/9": b"x"})
        joined = {"docs/all": b"".join(d[:-1] + b"\0" for d in docs) + b"x"}
        marked = Run(1, recipe(1, 1, 36, **{
            **base, "data.packing": "documents", "data.document_separator": 0, "data.format": "text",
            "data.train": "docs/all"}), joined)
        close(packed.loss, single.loss, 5e-3 if bf16 else 1e-5, "packed loss")
        close(packed.norm, single.norm, 2e-2 if bf16 else 1e-4, "packed norm")
        assert packed.steps[0]["targets"] == single.steps[0]["targets"] == 33
        assert marked.steps[0]["targets"] == 33, "a separator is no target of its own, or the last one is"
        plain = Run(1, recipe(1, 1, 36, **base), {"docs/all": b"".join(docs) + b"x"})
        assert abs(plain.loss[-1] - packed.loss[-1]) > 1e-3, "packing changed nothing"
    for model in ("gpt2",) if QUICK else ("gpt2", "qwen3"):
        for precision in ("fp32",) if QUICK else ("fp32", "bf16"):
            test(f"packed documents are samples of their own, {model} {precision}",
                 lambda: check(model, precision == "bf16"))


def evaluation_across_ranks():
    """Validation loss is over the tokens, whatever the ranks and batches, short ones too."""
    def check():
        def val(ranks, micro, stage):
            r = text_recipe(**{"train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": 1,
                               "data.val_fraction": 0.1, "train.eval_every": 4, "train.steps": 0,
                               "zero_optimization.stage": stage})
            return Run(ranks, r).summary["first_val_loss"]
        want = val(1, 1, 0)
        close([val(1, 4, 0), val(2, 3, 2), val(3, 5, 3)], [want] * 3, 1e-6, "validation loss")
    if not QUICK:
        test("validation loss by any split", check)


def epochs():
    """Each sample once an epoch; the last step's missing samples are masked, which is exact."""
    each = EXPECTED["loss_per_sequence"]
    mean = lambda *seqs: sum(each[s] for s in seqs) / len(seqs)
    frozen = {"optimizer.params.lr": 0, "data.shuffle": False}

    def check(ranks, micro, accum):
        r = recipe(micro, accum, 6, **frozen, **{"train.epochs": 2})
        del r["train"]["steps"]
        run = Run(ranks, r)
        close(run.loss, [mean(0, 1, 2), mean(3, 0, 1), mean(2, 3)], 1e-5, "loss")
        assert [x["targets"] for x in run.steps] == [18, 18, 12], f"{run.steps}"
        assert run.steps[-1]["tokens"] == 48, f"{run.steps[-1]['tokens']} tokens in two epochs of 24"
        assert "2 epochs, 3 steps" in run.text, run.text

    def earlier():
        run = Run(1, recipe(3, 1, 6, **frozen, **{"train.epochs": 9, "train.steps": 2}))
        assert len(run.loss) == 2, f"{len(run.loss)} steps"
    for split in ((3, 1, 1),) if QUICK else ((1, 3, 1), (3, 1, 1), (1, 1, 3)):
        test("epochs, ranks=%d micro=%d accum=%d" % split, lambda s=split: check(*s))
    if not QUICK:
        test("epochs and steps: the first of both ends", earlier)


def megatron(docs):
    """A pair of files, uint8 tokens, a sequence a document."""
    ends = [sum(map(len, docs[:i])) for i in range(len(docs) + 1)]
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 1, len(docs), len(docs) + 1)
    index += struct.pack(f"<{len(docs)}i", *map(len, docs)) + struct.pack(f"<{len(docs)}q", *ends[:-1])
    return b"".join(docs), index + struct.pack(f"<{len(docs) + 1}q", *range(len(docs) + 1))


def megatron_documents():
    """Case D06: documents of an index pack as files do."""
    docs = [(REPO / "LICENSE").read_bytes()[i * 70:i * 70 + 20 + i] for i in range(40)]
    base = {"data.packing": "documents", "train.steps": 3}

    def check():
        bin_, idx = megatron(docs)
        files = Run(2, text_recipe(**base, **{"data.train": "docs"}),
                    {f"docs/{i:03}": d for i, d in enumerate(docs)})
        pair = Run(2, text_recipe(**base, **{"data.train": "pair"}), {"pair.bin": bin_, "pair.idx": idx})
        assert files.bits() == pair.bits(), f"{files.loss} and {pair.loss}"
    test("megatron documents", check)


def weighted_files():
    """The share of each file, and the numbers, do not depend on the ranks."""
    text = (REPO / "LICENSE").read_bytes()
    files = {"a": text[:1000], "b": b"0123456789" * 300}
    train = [{"path": "a", "weight": 0.25}, {"path": "b", "weight": 0.75}]

    def check():
        runs = [Run(n, text_recipe(**{"train_micro_batch_size_per_gpu": m, "gradient_accumulation_steps": a,
                                      "data.train": train, "zero_optimization.stage": n}), files)
                for n, m, a in ((1, 4, 1), (2, 1, 2), (2, 2, 1))]
        for run in runs[1:]:
            close(run.loss, runs[0].loss, 1e-5, "loss")
        other = Run(1, text_recipe(**{"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1,
                                      "data.train": train[::-1]}), files)
        assert "25 % of the samples from 1 file, 1000 tokens" in runs[0].text, runs[0].text
        assert "75 % of the samples from 1 file, 3000 tokens" in other.text, other.text
    if not QUICK:
        test("files with weights", check)
