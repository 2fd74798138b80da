#!/usr/bin/env bash
# zerotrain report: tables, where their numbers come from, runs that did not end well, wrong files.
. "$REPO/test/cli/common.bash"
tiny

# run FOLDER STAGE N_STEPS MS BYTES [SET]...: the folder that a run leaves, with times that do not differ.
run() {
    local dir=$1 stage=$2 n=$3 ms=$4 bytes=$5
    mkdir -p "$dir"
    zerotrain plan --device=cpu --num_gpus=2 --set zero_optimization.stage="$stage" "${@:6}" --print_recipe \
        tiny.yaml >"$dir/recipe.yaml"
    awk -v n="$n" -v ms="$ms" -v bytes="$bytes" 'BEGIN {
        for (s = 1; s <= n; s++)
            printf "{\"type\": \"step\", \"step\": %d, \"loss\": %g, \"tokens\": %d, \"step_ms\": %s, " \
                   "\"mfu\": %s, \"device_peak_bytes\": %s, \"host_peak_bytes\": 5000000%s}\n", s,
                   5 - s / 10 + (s == n), s * 128, s == 1 ? "null" : s < 4 ? 1000 : ms + s % 2,
                   s == 1 ? "null" : "0.25", bytes, s % 5 ? "" : ", \"val_loss\": " 6 - s / 10 }' >"$dir/metrics.jsonl"
}

# summary FOLDER EXIT_CODE STOPPED BYTES: of two ranks, the second has more.
summary() {
    cat >"$1/summary.json" <<END
{"exit_code": $2, "stopped": $3, "best_val_loss": null, "memory": [
 {"rank": 0, "predicted_bytes": 1, "touched_bytes": 1, "rss_peak_bytes": 1, "device_touched_bytes": 1},
 {"rank": 1, "predicted_bytes": $(($4 + 3000)), "touched_bytes": $(($4 + 2000)), "rss_peak_bytes": 7000000,
  "device_touched_bytes": $4}]}
END
}

run runs/stage0 0 12 100 4000000
summary runs/stage0 0 null 4000000
run runs/stage2 2 12 50.5 3000000
summary runs/stage2 0 '"asked"' 3000000
run runs/stage10 3 3 1 2000000 --set bf16.enabled=true
run runs/stage1 1 12 20000 3500000000
printf '{"type": "st' >>runs/stage1/metrics.jsonl # it is under way
mkdir -p runs/offload runs/nothing
echo '{"stage": 1, "offload": "cpu", "exit_code": 4, "message": "offload_optimizer: no | \u001b[1m"}' >runs/offload/sweep.json
run runs/memory 3 2 1 1
echo '{"exit_code": 5, "stopped": null, "memory": []}' >runs/memory/summary.json

try zerotrain report runs/stage0
try zerotrain report runs/stage0/ runs/stage2 --warmup=0
try zerotrain report runs
try zerotrain report --format=markdown runs
try zerotrain report --format csv runs
try zerotrain report --format=csv --output=table.csv --svg=stages.svg runs
python3 - <<'END'
import csv, math, xml.etree.ElementTree as xml
rows = list(csv.DictReader(open("table.csv")))
svg = xml.parse("stages.svg").getroot()
ns = "{http://www.w3.org/2000/svg}"
titles = [t.text for t in svg.iter(ns + "title")]
bars = [r for r in svg.iter(ns + "rect") if r.find(ns + "title") is not None]
print(len(bars), "bars:", *titles, sep="\n  ")
for name, unit, key, size in ("memory", "GB", "device_peak_bytes", 1e9), ("time", "s", "step_ms", 1e3):
    values = {r["run"]: float(r[key]) / size for r in rows if r[key] and r["exit_code"] != "5"}
    heights = {b.find(ns + "title").text.split(":")[0]: float(b.get("height")) for b in bars
               if b.find(ns + "title").text.endswith(" " + unit)}
    assert heights.keys() == values.keys(), (heights, values)
    scale = max(heights.values()) / max(values.values())
    for run in values: # to a tenth of a pixel
        assert abs(heights[run] - values[run] * scale) <= 0.11, (run, heights[run], values[run] * scale)
texts = ["".join(t.itertext()) for t in svg.iter(ns + "text")]
print(*(t for t in texts if not t.replace(".", "").isdigit()), sep="\n")
END

try zerotrain report
try zerotrain report --format=html runs
try zerotrain report --warmup=-1 runs
try zerotrain report --nothing runs
try zerotrain report --svg
try zerotrain report missing
try zerotrain report runs/nothing
try zerotrain report --output=nowhere/table runs/stage0
mkdir -p bad
cp -r runs/stage0 bad/line
sed -i '3s/$/,/' bad/line/metrics.jsonl
cp -r runs/stage0 bad/long
head -c 70000 /dev/zero >>bad/long/metrics.jsonl
cp -r runs/stage0 bad/summary
sed -i '2s/"touched_bytes": 1/"touched_bytes": "1"/' bad/summary/summary.json
cp -r runs/stage0 bad/recipe
sed -i 's/model_type/model_typo/' bad/recipe/recipe.yaml
cp -r runs/stage0 bad/ranks
sed -i 1d bad/ranks/recipe.yaml
for run in bad/*; do try zerotrain report "$run"; done
# Who reads what a run says while it is said has it; a report waits for nobody.
cp -r runs/stage0 piped
rm piped/metrics.jsonl
mkfifo piped/metrics.jsonl
try timeout 20 "$ZT" report piped
# What can be read is reported.
mkdir mixed
cp -r bad/line runs/stage0 mixed
try zerotrain report bad/long mixed
try zerotrain report --format=csv --output=some.csv mixed
cut -d, -f1 some.csv
