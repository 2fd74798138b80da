"""What test programs in Python share: their arguments, the tests' verdicts.

    PROGRAM [--quick|--long] [--share=I/N] ZEROTRAIN [FILTER]

FILTER: only tests with that in their names, of which there must be one. --share=I/N: every N-th of them, from the
I-th. --quick and --long: fewer combinations, or all. One line each: "ok SUITE NAME" or "not ok SUITE NAME: why".
"""
import pathlib
import sys

REPO = pathlib.Path(__file__).resolve().parents[1]
QUICK, LONG = "--quick" in sys.argv, "--long" in sys.argv
args = [a for a in sys.argv[1:] if not a.startswith("--")]
ZT = str(pathlib.Path(args[0] if args else "build/zerotrain").resolve())
FILTER = args[1] if len(args) > 1 else ""
SHARE, SHARES = next((map(int, a[8:].split("/")) for a in sys.argv if a.startswith("--share=")), (1, 1))
n_tests = n_skips = failures = 0


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
    global n_skips
    if FILTER not in name:
        return
    n_skips += 1
    if SHARE == 1:
        print(f"skip {suite} {name}: {why}", flush=True)


def end():
    if n_tests + n_skips == 0:
        sys.exit(f'not ok no test has "{FILTER}" in its name')
    sys.exit(1 if failures else 0)
