"""The process of a rank other than 0: it loads its part of the target, and does what rank 0 tells it to.

``python -m dovetail.engine.parallel.worker FD`` runs it, with the file descriptor of its end of a socket. It ends when
the other end is closed, when another rank is lost, or with the first error, which it reports.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import sys
import time

import torch

from dovetail.engine.models.base import Model
from dovetail.engine.parallel.channel import (
    Channel,
    Failed,
    Forward,
    Loading,
    Logits,
    Lost,
    Ready,
    Task,
    batch_of,
    packed,
)
from dovetail.engine.parallel.gloo import join
from dovetail.engine.parallel.group import Group, RankLost
from dovetail.errors import DovetailError

# Seconds between reports while it loads.
_OFTEN = 0.5


def main() -> None:
    # Ctrl-C in a terminal reaches every process of it. Rank 0 decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    try:
        # From the process that started this one.
        task: Task = pickle.loads(channel.receive(None))
        _work(channel, task)
    except EOFError:
        pass  # rank 0 is gone, or wants no more
    except RankLost:
        _report(channel, Lost())
    except Exception as error:
        _report(channel, Failed(error.message if isinstance(error, DovetailError) else repr(error)))
    # At once, because the group's own end waits for ranks that do not answer.
    os._exit(0)


def _report(channel: Channel, report: Lost | Failed) -> None:
    with contextlib.suppress(OSError):
        channel.send(packed(report), None)


def _work(channel: Channel, task: Task) -> None:
    from dovetail.engine.loading import load_part

    torch.set_num_threads(task.threads)
    ranks = join(task.meeting, task.rank, task.settings.sizes, task.settings.rank_deadline)
    reported = time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal reported
        if time.monotonic() - reported > _OFTEN:
            channel.send(packed(Loading(done, total)), None)
            reported = time.monotonic()

    with torch.inference_mode():
        model = load_part(task.target, task.settings, ranks, task.rows, task.context, task.aux_layers, report)
        channel.send(packed(Ready()), None)
        _obey(channel, model, ranks.tensor)


def _obey(channel: Channel, model: Model, group: Group) -> None:
    """Do what rank 0 does, until it is gone."""
    width, dtype = model.embed_tokens.shape[1], model.embed_tokens.dtype
    while True:
        order = channel.order()
        if isinstance(order, Forward):
            model.forward(batch_of(order))
            continue
        states = group.from_first(torch.empty(order.states, width, dtype=dtype))
        if isinstance(order, Logits):
            model.logits(states)
        else:
            model.best(states)


if __name__ == "__main__":
    main()
