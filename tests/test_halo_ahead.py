"""Rows that leave before their sum begins: the same results, and more done while they travel."""

import pytest
import torch
from awkward import awkward_case

from gnn_dist.errors import ConfigError
from gnn_dist.halo.aggregate import aggregate
from gnn_dist.halo.ahead import Ahead, depart
from gnn_dist.halo.block import Block
from gnn_dist.halo.exchange import ExchangeMaker
from gnn_dist.halo.load import load_shard
from gnn_dist.ops import linear as linear_module
from gnn_dist.ops.linear import linear, linear_pair
from gnn_dist.shard.format import write_partition
from gnn_dist.testing import run_ranks

pytestmark = pytest.mark.mpi


def block_of(world, folder, policy="overlap"):
    shard = load_shard(folder, world)
    return Block(shard.structure, ExchangeMaker(shard.plan, world.transport, policy).at(0)), shard


def parameters():
    generator = torch.Generator().manual_seed(0)
    shapes = [(4, 3), (4, 3), (4,)]
    return [
        torch.randn(s, generator=generator, dtype=torch.float64).requires_grad_() for s in shapes
    ]


def three_ways(world, folder):
    """Posting ahead, by a pair of products or by `depart`, changes nothing at all."""
    plain, shard = block_of(world, folder)
    for reduce in ("sum", "mean"):
        check_three_ways(plain, shard, reduce)


def check_three_ways(plain, shard, reduce):
    found = []
    for way in ("plain", "pair", "depart"):
        block = plain if way == "plain" else plain.with_ahead()
        x = torch.sin(shard.node_id.double()[:, None] * torch.arange(1.0, 4.0)).requires_grad_()
        first, second, bias = parameters()
        if way == "pair":
            rows, root = linear_pair(x, first, second, bias, use=block.ahead)
        else:
            rows, root = depart(linear(x, first), block.ahead), linear(x, second, bias)
        out = aggregate(rows, block, reduce=reduce, onto=root)
        target = torch.cos(shard.node_id.double())[:, None].expand_as(out)
        grads = []
        for retain in (True, False):  # a second backward of the same graph is complete too
            inputs = (x, first, second, bias)
            grads += torch.autograd.grad(out, inputs, target, retain_graph=retain)
        found.append([out.detach(), *grads])
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["random partition", "directed", "empty part", "no edges"])
def test_the_same_results(name, tmp_path):
    _, graph, partition = awkward_case(name, 3)
    write_partition(graph, partition, tmp_path / "parts")
    run_ranks(three_ways, 3, tmp_path / "parts")


class Watched(Ahead):
    """Says when rows leave, and when their gradients are waited for."""

    def __init__(self, exchange, log):
        super().__init__(exchange)
        self.log = log

    def made(self, rows):
        self.log.append("post")
        super().made(rows)

    def leave(self, finish):
        self.log.append("gradients are posted")
        super().leave(finish)

    def gradient(self, grad):
        self.log.append("wait for gradients")
        return super().gradient(grad)


def order(world, folder):
    plain, shard = block_of(world, folder)
    logs = []
    for way in ("pair", "depart"):
        log = []
        block = Block(plain.structure, plain.exchange, ahead=Watched(plain.exchange, log))
        x = shard.x.double()[:, :3].clone().requires_grad_()
        first, second, bias = parameters()
        with pytest.MonkeyPatch.context() as patch:
            for name in ("product", "weight_gradient"):
                plain_function = getattr(linear_module, name)
                patch.setattr(linear_module, name, logged(plain_function, name, log))
            if way == "pair":
                rows, root = linear_pair(x, first, second, bias, use=block.ahead)
            else:
                rows = depart(linear(x, first), block.ahead)
                root = linear(x, second, bias)
            log.append("sum")
            aggregate(rows, block, onto=root).sum().backward()
        logs.append(log)
    return logs


def logged(function, name, log):
    def call(*args, **kwargs):
        log.append(name)
        return function(*args, **kwargs)

    return call


def test_what_does_not_depend_on_rows_is_done_before_they_are_waited_for(tmp_path):
    _, graph, partition = awkward_case("random partition", 2)
    write_partition(graph, partition, tmp_path / "parts")
    forward = ["product", "post", "product", "sum"]
    backward = ["gradients are posted", "weight_gradient", "wait for gradients", "weight_gradient"]
    for logs in run_ranks(order, 2, tmp_path / "parts"):
        assert logs == [forward + backward] * 2


def extreme(world, folder):
    block, shard = block_of(world, folder)
    with pytest.raises(ConfigError, match="ahead of a sum or mean only, got reduce='max'"):
        aggregate(shard.x, block.with_ahead(), reduce="max")


def test_a_maximum_is_refused(tmp_path):
    _, graph, partition = awkward_case("random partition", 2)
    write_partition(graph, partition, tmp_path / "parts")
    run_ranks(extreme, 2, tmp_path / "parts")


def one_rank(world, folder):
    block, _ = block_of(world, folder)
    assert block.with_ahead() is block


def test_nothing_leaves_a_rank_that_is_alone(tmp_path):
    _, graph, partition = awkward_case("random partition", 3)
    write_partition(graph, partition, tmp_path / "parts")
    run_ranks(one_rank, 1, tmp_path / "parts")
