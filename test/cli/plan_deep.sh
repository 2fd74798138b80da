#!/usr/bin/env bash
# Of a deep model with accumulation, the planner's own memory grows with the buffers, not with their pairs.
. "$REPO/test/cli/common.bash"
tiny
python3 - "$ZT" <<'END'
import resource, subprocess, sys
subprocess.run([sys.argv[1], "plan", "--device=cpu", "tiny.yaml", "--set", "model.n_layer=600",
                "--set", "gradient_accumulation_steps=8"], stdout=subprocess.DEVNULL, check=True)
mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
print("little memory" if mb < 128 else f"{mb:.0f} MB")
END
