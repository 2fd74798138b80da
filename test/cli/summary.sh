#!/usr/bin/env bash
# summary.json of a run that ended well, and of one that did not.
. "$REPO/test/cli/common.bash"
tiny
train tiny.yaml --log_dir=good >/dev/null
train tiny.yaml --log_dir=bad --set optimizer.params.lr=1e30 >/dev/null 2>&1
python3 - <<'END'
import json
for name in "good", "bad":
    s = json.load(open(name + "/summary.json"))
    print(*s)
    print(s["exit_code"], s["steps"], s["skipped"], s["stopped"], s["first_val_loss"], len(s["memory"]))
    print(s["digest"] is None, s["last_loss"] is None)
m = json.load(open("good/summary.json"))["memory"][1]
print(*m)
assert all(isinstance(v, int) for v in m.values())
assert m["touched_least_bytes"] <= m["touched_bytes"] <= m["touched_most_bytes"] <= m["predicted_bytes"]
assert m["rank"] == 1 and 0 < m["touched_bytes"] <= m["predicted_bytes"] < m["rss_peak_bytes"]
END
