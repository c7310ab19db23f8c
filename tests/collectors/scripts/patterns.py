"""Trains in one of several ways; what it sees of argv, __file__ and sys.path goes to a file."""

import json
import os
import sys
from pathlib import Path

import torch
from torch import nn


def model():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def sgd(module):
    return torch.optim.SGD(module.parameters(), lr=0.01)


def backward(module):
    module(torch.randn(4, 8)).square().mean().backward()


def plain(steps):
    net = model()
    optimizer = sgd(net)
    for _ in range(steps):
        optimizer.zero_grad()
        backward(net)
        optimizer.step()


def accumulation(steps):
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    for i in range(steps * 4):
        backward(net)
        if i % 4 == 3:
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()


def gan(steps):
    critic, generator = model(), model()
    critic_optimizer, generator_optimizer = sgd(critic), torch.optim.Adam(generator.parameters())
    for _ in range(steps):
        for _ in range(5):
            backward(critic)
            critic_optimizer.step()
        backward(generator)
        generator_optimizer.step()


def in_backward(steps):
    net = nn.Sequential(*[nn.Linear(8, 8) for _ in range(40)])
    optimizers = {p: torch.optim.SGD([p], lr=0.01) for p in net.parameters()}

    def step(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    for _ in range(steps):
        backward(net)


def scaler(steps):
    net = model()
    optimizer = sgd(net)
    grad_scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
    for i in range(steps):
        optimizer.zero_grad()
        loss = net(torch.randn(4, 8)).square().mean()
        if i % 5 == 1:
            loss = loss * float("inf")
        grad_scaler.scale(loss).backward()
        grad_scaler.step(optimizer)
        grad_scaler.update()


def subclass(steps):
    class Mine(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    net = model()
    unused = sgd(net)
    optimizer = Mine(net.parameters(), lr=0.01)
    for _ in range(steps):
        backward(net)
        optimizer.step()
    del unused


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, i):
        return torch.full((8,), float(i))


def workers(steps, context="fork"):
    loader = torch.utils.data.DataLoader(
        Squares(), batch_size=4, num_workers=2, multiprocessing_context=context
    )
    net = model()
    optimizer = sgd(net)
    for i, batch in enumerate(loader):
        optimizer.zero_grad()
        net(batch).square().mean().backward()
        optimizer.step()
        if i == steps:
            break


def spawned(steps):
    workers(steps, "spawn")


def forked_trainer(steps):
    pid = os.fork()
    if pid == 0:
        plain(steps)
        os._exit(0)
    os.waitpid(pid, 0)


def executed(steps):
    os.execv(sys.executable, [sys.executable, __file__, "plain", str(steps)])


def distributed(steps):
    torch.distributed.init_process_group("gloo")
    net = nn.parallel.DistributedDataParallel(model())
    optimizer = sgd(net)
    for _ in range(steps):
        optimizer.zero_grad()
        backward(net)
        optimizer.step()
    torch.distributed.destroy_process_group()


def compiled(steps):
    net = model()
    optimizer = sgd(net)
    forward = torch.compile(net, backend="aot_eager")
    for _ in range(steps):
        optimizer.zero_grad()
        forward(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()


def compiled_step(steps):
    from torch._dynamo.utils import counters

    net = model()
    optimizer = sgd(net)
    step = torch.compile(optimizer.step, backend="aot_eager")
    for _ in range(steps):
        optimizer.zero_grad()
        backward(net)
        step()
    print("graph breaks", sum(counters["graph_break"].values()))


def nothing(steps):
    model()


if __name__ == "__main__":
    if os.environ.get("SEEN"):
        with Path(os.environ["SEEN"]).open("w") as stream:
            json.dump(
                {
                    "argv": sys.argv,
                    "file": __file__,
                    "path0": sys.path[0],
                    "inject": [p for p in sys.path if p.endswith("inject")],
                    "sitecustomize": getattr(sys.modules.get("sitecustomize"), "__file__", None),
                    "environment": dict(os.environ),
                    "threads": torch.get_num_threads(),
                },
                stream,
            )
    globals()[sys.argv[1]](int(sys.argv[2]))
