#!/usr/bin/env bash
# On a terminal one line is rewritten, never wider than the terminal, and its last state stays.
. "$REPO/test/cli/common.bash"
tiny
COLS=40 script -qec "stty cols 40; TERM=xterm '$ZT' --device=cpu --num_gpus=2 tiny.yaml --log_dir=run" /dev/null </dev/null >out
python3 - <<'END'
out = open("out", "rb").read().decode()
live = [part for line in out.split("\r\n") for part in line.split("\r") if part.startswith("step ")]
print(len(live) >= 1, max(len(l.split("\x1b")[0]) for l in live))
print(live[-1].split(" loss")[0], live[-1].endswith("\x1b[K"))
print("\r\n\r\n3 steps:" in out)
END
