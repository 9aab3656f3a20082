"""Gradients summed over the ranks: in one message or several, as the backward makes them.

    backward     layer 3 | layer 2 ............ | layer 1 ....
    messages             | bucket of layer 3    | bucket of layer 2 | bucket of layer 1

One bucket is right for most graph networks: their parameters are few, and each message costs its
latency. Several pay where the backward of lower layers waits for halo rows anyway.
"""

import time
from collections.abc import Sequence
from itertools import accumulate, groupby, pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from gnn_dist.comm.transport import Handle, Transport
from gnn_dist.train.gradient_wire import GradientWire, make_wire

__all__ = ["Buckets", "GradientSync", "plan_buckets"]

Buckets = Literal["one", "layers", "planned"]
STEPS_MEASURED = 3  # before buckets are planned
TRIES = 5


class GradientSync:
    """All gradients of a model in one buffer, summed over the ranks bucket by bucket.

    The parameters' `grad` are views of the buffer: nothing is copied. A bucket is sent when its
    last gradient is there, and buckets in the same order on every rank, whatever the order in which
    they become ready. One number (the loss) rides along.

    Args:
        model: Its parameters are of one dtype and device.
        transport: The ranks.
        buckets: `one`; `layers`, one for each layer; or `planned`, which measures three steps and
            then merges layers where that ends sooner. A plan depends on measured times, and sums of
            three and more ranks on the plan by rounding; the others are the same in every run.
        encoding: `exact`; `bf16`, sums in 16 bits; or `topk`, the largest elements alone, the rest
            added to the next step's.
        share: Of the elements that `topk` sends.

    Attributes:
        fingerprint: Of what a state depends on.
    """

    def __init__(
        self,
        model: nn.Module,
        transport: Transport,
        *,
        buckets: Buckets = "one",
        encoding: str = "exact",
        share: float = 0.01,
    ) -> None:
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        # A backward reaches the last parameters first.
        self._parameters = [p for _, p in reversed(named)]
        self._transport = transport
        layers = groupby(reversed(named), key=lambda item: item[0].split(".")[:-1][:2])
        of_layers = [len(list(group)) for _, group in layers]
        first = self._parameters[0]
        size = sum(p.numel() for p in self._parameters)
        self._buffer = torch.zeros(size + 1, dtype=first.dtype, device=first.device)
        self._wire: GradientWire = make_wire(encoding, transport, size, share=share)
        self.fingerprint = f"{encoding} {size} {transport.rank} of {transport.world_size}"
        self._bound = [0, *accumulate(p.numel() for p in self._parameters)]
        self._set_buckets(of_layers if buckets == "layers" else [len(self._parameters)])
        self._steps_to_measure = STEPS_MEASURED if buckets == "planned" else 0
        self._ready_s: list[list[float]] = []
        for index, parameter in enumerate(self._parameters):
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                lambda _, i=index: self._arrived(i)
            )
        self._started = False
        self._attach()

    def begin(self, number: Tensor) -> None:
        """Set all gradients to zero before a backward, and take a number along."""
        self._buffer.zero_()
        self._attach()
        self._buffer[-1] = number
        self._left = list(self._counts)
        self._next = 0
        self._handles: list[Handle] = []
        self._began = time.perf_counter()
        self._ready_s.append([0.0] * len(self._parameters))
        self._started = True

    def finish(self) -> float:
        """Collective. Return the sum of the numbers once all gradients are sums over the ranks."""
        self._started = False
        while self._next < len(self._counts):
            self._send_next()  # also what has no gradient on this rank
        for handle in self._handles:
            handle.wait()
        self._handles = []
        if len(self._ready_s) == self._steps_to_measure:
            self._plan()
        del self._ready_s[self._steps_to_measure :]
        return float(self._buffer[-1].item())

    @property
    def bucket_sizes(self) -> list[int]:
        """Elements of each bucket, in the order in which they are sent."""
        return [stop - start for start, stop in pairwise(self._ends)]

    @property
    def stateful(self) -> bool:
        """Whether anything of a step's gradients is sent in a later one."""
        return bool(self._wire.state_dict())

    def state_dict(self) -> dict[str, Tensor]:
        """Return what of earlier gradients is still to be sent, on this rank."""
        return self._wire.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on from a state of the same model on the same rank."""
        self._wire.load_state_dict(state)

    def _set_buckets(self, counts: list[int]) -> None:
        """Divide the parameters into runs of some lengths."""
        self._counts = counts
        self._bucket_of = [b for b, count in enumerate(counts) for _ in range(count)]
        self._ends = [self._bound[i] for i in accumulate(counts, initial=0)]

    def _attach(self) -> None:
        for parameter, (start, stop) in zip(self._parameters, pairwise(self._bound), strict=True):
            parameter.grad = self._buffer[start:stop].view_as(parameter)

    def _arrived(self, index: int) -> None:
        """Note that a gradient is complete; send the buckets that now are."""
        if not self._started:
            return  # a backward of someone else
        if self._steps_to_measure:
            self._ready_s[-1][index] = time.perf_counter() - self._began
        self._left[self._bucket_of[index]] -= 1
        while self._next < len(self._left) and self._left[self._next] == 0:
            self._send_next()

    def _send_next(self) -> None:
        """Collective. Start to sum the next bucket."""
        start, stop = self._ends[self._next : self._next + 2]
        self._next += 1
        number = self._buffer[-1:] if self._next == len(self._counts) else None
        self._handles += self._wire.start(self._buffer, start, stop, number)

    def _plan(self) -> None:
        """Collective. Choose buckets from measured times; rank 0's choice is everyone's."""
        ready = torch.tensor(self._ready_s).median(0).values.cummax(0).values.tolist()
        sizes = [b - a for a, b in pairwise(self._bound)]
        element = self._buffer.element_size()
        latency_s, byte_s = _message_cost(self._transport, self._buffer)
        counts = plan_buckets(ready, [size * element for size in sizes], latency_s, byte_s)
        plan = torch.zeros(len(sizes), dtype=torch.int64, device=self._buffer.device)
        plan[: len(counts)] = torch.tensor(counts)
        self._transport.broadcast(plan)
        self._set_buckets([count for count in plan.tolist() if count])
        self._steps_to_measure = 0


def plan_buckets(
    ready_s: Sequence[float], num_bytes: Sequence[int], latency_s: float, byte_s: float
) -> list[int]:
    """Merge gradients into buckets so that the last arrives as soon as possible.

    Buckets are sent one after the other, each when its last gradient is ready and the one before
    has arrived; a bucket takes latency_s + byte_s * bytes. Time and memory O(L^2) and O(L).

    Args:
        ready_s: (L,), seconds at which each gradient is ready, ascending.
        num_bytes: (L,), its bytes.
        latency_s: Seconds that a message takes whatever its size.
        byte_s: Seconds for each byte.

    Returns:
        How many gradients each bucket has, in order.

    Source: "MG-WFBP: Efficient Data Communication for Distributed Synchronous SGD Algorithms" (Shi,
    Chu, Li), arXiv 1811.11141, poses the problem; this is the dynamic program over the last bucket.
    """
    before = [0, *accumulate(num_bytes)]
    done = [0.0]
    begins = [0]
    for end in range(1, len(ready_s) + 1):
        times = [
            max(done[start], ready_s[end - 1]) + latency_s + byte_s * (before[end] - before[start])
            for start in range(end)
        ]
        # Of equal ones the longest bucket: fewer messages.
        begin = min(range(end), key=times.__getitem__)
        done.append(times[begin])
        begins.append(begin)
    counts: list[int] = []
    end = len(ready_s)
    while end:
        counts.insert(0, end - begins[end])
        end = begins[end]
    return counts


def _message_cost(transport: Transport, like: Tensor) -> tuple[float, float]:
    """Collective. Return the seconds of a sum of one element, and more for each further byte."""

    def median_s(size: int) -> float:
        """Collective. Return the seconds of a sum of so many elements."""
        seconds = []
        for _ in range(TRIES):
            values = torch.zeros(size, dtype=like.dtype, device=like.device)
            start = time.perf_counter()
            transport.all_reduce(values).wait()
            seconds.append(time.perf_counter() - start)
        return sorted(seconds)[TRIES // 2]

    latency_s, whole_s = median_s(1), median_s(like.numel())
    return latency_s, max(0.0, whole_s - latency_s) / (like.numel() * like.element_size())
