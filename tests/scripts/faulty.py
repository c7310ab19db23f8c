"""A script that goes wrong in the way its first argument names."""

import ctypes
import os
import signal
import subprocess
import sys
import time

how = sys.argv[1]
if how == "dies":
    raise RuntimeError("the data set is missing")
if how == "no-torch":
    sys.exit(0)

import torch  # noqa: E402  (some faults come before it)

if how == "no-steps":
    sys.exit(0)
if how == "hangs":
    time.sleep(600)
if how == "segfaults":
    ctypes.string_at(0)
if how == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if how == "eats-memory":
    blocks = []
    while True:
        blocks.append(bytearray(b"x" * (64 << 20)))
        time.sleep(0.02)
if how == "prints":
    for _ in range(100):
        sys.stdout.write("x" * (1 << 20))
if how == "children":
    for _ in range(2):
        subprocess.Popen(["sleep", sys.argv[2]], start_new_session=True)

parameter = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([parameter], lr=0.1)
for _ in range(int(sys.argv[3]) if how == "few-steps" else 100_000):
    optimizer.zero_grad()
    parameter.square().sum().backward()
    optimizer.step()
    time.sleep(0.002)
