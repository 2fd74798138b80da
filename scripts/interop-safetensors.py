#!/usr/bin/env python3
"""Compare our safetensors reader with the reference implementation (the `safetensors` package).

usage: interop-safetensors.py OUT_DIR FILE...

Writes OUT_DIR/values.safetensors by the reference, OUT_DIR/values.txt with the numbers it must give
("NAME INDEX HEXFLOAT" a line), and OUT_DIR/verdicts.txt with the reference's verdict on each FILE
("accept FILE" or "reject FILE"). test/unit/ckpt/test_interop.c runs it and compares.

Without the package, it is installed into a virtual environment in build/interop-venv. Where that
fails, the exit status is 77 and the last line of output is the reason.
"""
import ctypes
import fcntl
import os
import struct
import subprocess
import sys

VENV = "build/interop-venv"
SKIP = 77


def skip(reason):
    print(reason)
    sys.exit(SKIP)


def import_reference():
    """The package, or a new start of this script inside the virtual environment."""
    try:
        import safetensors

        return safetensors
    except ImportError:
        pass
    python = os.path.abspath(f"{VENV}/bin/python3")
    if os.path.abspath(sys.executable) == python:
        skip("the safetensors package cannot be imported")
    os.makedirs("build", exist_ok=True)
    with open(f"{VENV}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        install(python)
    os.execv(python, [python] + sys.argv)


def install(python):
    commands = [
        [sys.executable, "-m", "venv", VENV],
        [python, "-m", "pip", "-q", "install", "--retries", "0", "--timeout", "10", "safetensors"],
    ]
    if os.path.exists(python):
        if subprocess.run([python, "-c", "import safetensors"], stderr=subprocess.DEVNULL).returncode == 0:
            return
    for command in commands:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            print(done.stdout)
            skip(f"no safetensors package, and `{' '.join(command[1:])}` failed")


def serialize(st, tensors):
    """tensors: name -> (dtype, shape, bytes). The call changed with version 0.8."""
    if hasattr(st, "TensorSpec"):
        keep = {n: ctypes.create_string_buffer(data, max(len(data), 1)) for n, (_, _, data) in tensors.items()}
        specs = {
            n: st.TensorSpec(dtype=dtype, shape=shape, data_ptr=ctypes.addressof(keep[n]), data_len=len(data))
            for n, (dtype, shape, data) in tensors.items()
        }
    else:
        specs = {n: {"dtype": dtype, "shape": shape, "data": data} for n, (dtype, shape, data) in tensors.items()}
    return st.serialize(specs, {"format": "pt"})


def write_values(st, out_dir):
    f32 = [0.0, -1.5, 3.1415927410125732, 1e-45, 3.4e38, -0.1]
    half = [0.0, 1.0, -2.0, 65504.0, 2.0**-24, 0.333251953125]
    f32 = list(struct.unpack("<6f", struct.pack("<6f", *f32)))
    bf16 = [struct.pack("<f", x)[2:] for x in f32]  # truncated: exact bfloat16 numbers
    values = {
        "f32": f32,
        "f16": half,
        "bf16": [struct.unpack("<f", b"\0\0" + b)[0] for b in bf16],
        "scalar": [7.25],
    }
    tensors = {
        "f32": ("float32", [2, 3], struct.pack("<6f", *f32)),
        "f16": ("float16", [6], struct.pack("<6e", *half)),
        "bf16": ("bfloat16", [3, 1, 2], b"".join(bf16)),
        "scalar": ("float32", [], struct.pack("<f", 7.25)),
        "empty": ("float32", [0, 4], b""),
        "mask": ("uint8", [3], b"\0\1\2"),
    }
    with open(f"{out_dir}/values.safetensors", "wb") as f:
        f.write(serialize(st, tensors))
    with open(f"{out_dir}/values.txt", "w") as f:
        for name, numbers in values.items():
            for i, x in enumerate(numbers):
                f.write(f"{name} {i} {float(x).hex()}\n")


def write_verdicts(st, out_dir, files):
    with open(f"{out_dir}/verdicts.txt", "w") as out:
        for path in files:
            with open(path, "rb") as f:
                data = f.read()
            try:
                st.deserialize(data)
                verdict = "accept"
            except Exception:  # the package's own exception type, whatever it is called today
                verdict = "reject"
            out.write(f"{verdict} {path}\n")


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    st = import_reference()
    write_values(st, sys.argv[1])
    write_verdicts(st, sys.argv[1], sys.argv[2:])


main()
