#!/usr/bin/env bash
# scripts/sweep-stages.sh: stages compared, what a build refuses, out of memory, interrupted and continued.
. "$REPO/test/cli/common.bash"
tiny
cat >small.yaml <<END
model: {model_type: gpt2, n_layer: 6, n_head: 2, n_embd: 64, n_positions: 16, vocab_size: 256}
data: {train: text.txt}
train_micro_batch_size_per_gpu: 1
zero_optimization: {stage3_prefetch_bucket_size: 1}
train: {steps: 100}
parallel: {threads: 1}
END
# zerotrain, and a record of what was trained; in front of stage 2 its caller is ended, once.
cat >zt <<'END'
#!/usr/bin/env bash
if [ "$1" = train ]; then
    printf '%s\n' "$*" | sed -E 's/.*stage=([0-9]).*device=([a-z]+) .*/trained: stage \1, offload \2/' >>trained
    [[ $* != *stage=2* || ! -e end ]] || { rm end; kill -TERM $PPID; }
fi
exec "$ZT" "$@"
END
chmod +x zt
export ZEROTRAIN=$PWD/zt
sweep() { "$REPO/scripts/sweep-stages.sh" "$@" 2>&1 >table | sed -E 's/(out of memory:|exit status 4:).*/\1 .../'; return "${PIPESTATUS[0]}"; }
trained() {
    cat trained 2>/dev/null
    rm -f trained
}

touch end
try sweep small.yaml --num_gpus 2 --steps 6 --out=out -- --device=cpu
trained
ls out
try sweep small.yaml --num_gpus 2 --steps 6 --out=out -- --device=cpu
trained
echo "# the same, and then with one setting changed in the recipe"
try sweep small.yaml --num_gpus 2 --steps 6 --out=out -- --device=cpu
trained
sed -i 's/^train:.*/&  # of no meaning/' small.yaml
try sweep small.yaml --num_gpus 2 --steps 6 --stages 3 --out=out -- --device=cpu
sed -i '$a gradient_clipping: 0.5' small.yaml
try sweep small.yaml --num_gpus 2 --steps 6 --stages 3 --out=out -- --device=cpu
trained
sed -i '$d' small.yaml
try sweep small.yaml --num_gpus 2 --steps 6 --stages 3,1 --offload none,nvme --out=out -- --device=cpu
trained
python3 - <<'END'
import csv, json, xml.etree.ElementTree as xml
rows = {r["run"]: r for r in csv.DictReader(open("out/table.csv"))}
print(*rows)
peaks = []
for stage in range(4):
    row = rows["stage%d" % stage]
    memory = json.load(open("out/stage%d/summary.json" % stage))["memory"]
    assert (row["ranks"], row["stage"], row["steps"], row["timed_steps"]) == ("2", str(stage), "6", "3"), row
    assert (row["batch"], row["seq_len"], row["precision"], row["result"]) == ("2", "16", "fp32", "ok"), row
    assert len(memory) == 2
    for column, key in (("device_peak_bytes", "device_touched_bytes"), ("touched_bytes", "touched_bytes"),
                        ("predicted_bytes", "predicted_bytes"), ("host_peak_bytes", "rss_peak_bytes")):
        assert int(row[column]) == max(m[key] for m in memory), (stage, column)
    timed = sorted(m["step_ms"] for m in map(json.loads, open("out/stage%d/metrics.jsonl" % stage)) if m["step"] > 3)
    assert abs(float(row["step_ms"]) - timed[1]) < 1e-6 * timed[1], (row, timed)
    peaks.append(int(row["device_peak_bytes"]))
assert peaks == sorted(set(peaks), reverse=True), peaks
assert len({rows[r]["last_loss"] for r in rows}) == 1
titles = [t.text for t in xml.parse("out/stages.svg").iter("{http://www.w3.org/2000/svg}title")]
for stage, peak in enumerate(peaks):
    assert "stage%d: %.2f MB" % (stage, peak / 1e6) in titles, (titles, peak)
    row, lines = rows["stage%d" % stage], open("out/table.md").read().splitlines()
    line = next(line for line in lines if line.startswith("| stage%d |" % stage))
    assert " %.2f |" % (peak / 1e6) in line, line
END
cut -d, -f1,5,6,26- out/table.csv
try sweep small.yaml --stages 1 --steps 1 --out=refused -- --device=cpu --set amp.enabled=true
trained
cut -d, -f1,5,26,27 refused/table.csv | cut -c 1-80

echo "# out of memory, in every combination; that is their result, too"
cat >big.yaml <<END
model: {model_type: gpt2, n_layer: 6, n_head: 8, n_embd: 2048, n_positions: 16, vocab_size: 256}
data: {train: text.txt}
train_micro_batch_size_per_gpu: 1
parallel: {threads: 1}
END
ulimit -v 2500000
try sweep big.yaml --stages=0,1 --steps=1 --out=big -- --device=cpu --num_gpus=2
try sweep big.yaml --stages=0,1 --steps=1 --out=big -- --device=cpu --num_gpus=2
trained
cut -d, -f1,5,26,27 big/table.csv
grep -c ',out of memory,.*Cannot allocate memory' big/table.csv

mkdir -p taken/stage0
try sweep small.yaml --out taken -- --device=cpu
try sweep small.yaml --stages 1,4
try sweep small.yaml --stages 1,,2
try sweep small.yaml --offload tape
try sweep small.yaml --steps
try sweep small.yaml --nothing=1
try sweep small.yaml big.yaml
try sweep
try sweep small.yaml -- --log_dir=x
try sweep small.yaml --num_gpus=none
sed -i 's/gpt2/gpt5/' small.yaml
try sweep small.yaml
