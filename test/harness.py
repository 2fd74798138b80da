"""What test programs in Python share: their arguments, the tests' verdicts.

    PROGRAM [--quick|--long] [--share=I/N] ZEROTRAIN [FILTER]

FILTER: only tests with that in their names. --share=I/N: every N-th of them, from the I-th. --quick and --long: fewer
combinations, or all. One line each: "ok SUITE NAME" or "not ok SUITE NAME: why".
"""
import pathlib
import sys

REPO = pathlib.Path(__file__).resolve().parents[1]
QUICK, LONG = "--quick" in sys.argv, "--long" in sys.argv
args = [a for a in sys.argv[1:] if not a.startswith("--")]
ZT = str(pathlib.Path(args[0] if args else "build/zerotrain").resolve())
FILTER = args[1] if len(args) > 1 else ""
SHARE, SHARES = next((map(int, a[8:].split("/")) for a in sys.argv if a.startswith("--share=")), (1, 1))
n_tests = failures = 0


def test(suite, name, fn):
    global n_tests, failures
    if FILTER not in name:
        return
    n_tests += 1
    if n_tests % SHARES != SHARE % SHARES:
        return
    try:
        fn()
        print(f"ok {suite} {name}", flush=True)
    except AssertionError as e:
        failures += 1
        print(f"not ok {suite} {name}: {e}", flush=True)


def skip(suite, name, why):
    if FILTER in name and SHARE == 1:
        print(f"skip {suite} {name}: {why}", flush=True)


def end():
    sys.exit(1 if failures else 0)
