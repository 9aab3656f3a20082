"""Relayed rows arrive where direct ones do, gradients return, and fewer cross the network."""

import itertools

import pytest
import torch
from awkward import MOSTLY_SLOW, awkward_case

from gnn_dist.halo.aggregate import aggregate
from gnn_dist.halo.block import Block
from gnn_dist.halo.clock import Clock
from gnn_dist.halo.exchange import ExchangeMaker
from gnn_dist.halo.load import exchange_rows, load_shard
from gnn_dist.halo.relay import plan_relay
from gnn_dist.profile.meter import Meter
from gnn_dist.shard.format import write_partition
from gnn_dist.testing import run_ranks

pytestmark = pytest.mark.mpi


def one_way(world, folder, machines):
    """Move ids by the three plans, and back; compare with the one plan."""
    shard = load_shard(folder, world)
    plan, transport = shard.plan, world.transport
    relay = plan_relay(plan, machines, transport)
    halo = torch.full((plan.num_halo,), -1)
    halo[relay.direct_place] = exchange_rows(shard.node_id, relay.direct, transport)
    relayed = exchange_rows(shard.node_id, relay.across, transport)
    assert torch.equal(relayed, relay.across.halo_id)
    assert torch.equal(relayed, relay.spread.src_id[: relay.spread.num_owned])
    halo[relay.spread_place] = exchange_rows(relayed, relay.spread, transport)
    assert torch.equal(halo, plan.halo_id)
    for part in (relay.direct, relay.spread):  # stay on the machine
        for ptr in (part.send_ptr, part.recv_ptr):
            assert all(
                ptr[q] == ptr[q + 1] or machines[q] == machines[world.rank]
                for q in range(world.world_size)
            )
    crossing = torch.tensor([relay.across.num_boundary, len(relay.spread_place)])
    transport.all_reduce(crossing).wait()
    return crossing.tolist(), relay.saved


@pytest.mark.parametrize("machines", ["aab", "abc", "aaa", "aba"])
@pytest.mark.parametrize("name", ["random partition", "star", "directed", "empty part"])
def test_every_row_arrives(name, machines, tmp_path):
    _, graph, partition = awkward_case(name, 3)
    write_partition(graph, partition, tmp_path / "parts")
    results = run_ranks(one_way, 3, tmp_path / "parts", machines)
    (crossing, before), saved = results[0]
    assert all(result == results[0] for result in results)
    assert crossing <= before
    assert saved == pytest.approx(1 - crossing / before if before else 0.0)
    if machines in ("aaa", "abc"):
        assert saved == 0.0


def compared(world, folder, machines):
    """Aggregate with relays and without, and the gradients; return bytes between machines."""
    shard = load_shard(folder, world)
    sent = {}
    for layer, (reduce, policy) in enumerate(
        itertools.product(("sum", "mean", "max"), ("overlap", "blocking+bf16", "sampled:p=0.5"))
    ):
        if policy.startswith("sampled") and reduce == "max":
            continue
        clock, meter = Clock(3), Meter()
        maker = ExchangeMaker(
            shard.plan,
            world.transport,
            f"{policy}+relay:least=0",
            clock=clock,
            meter=meter,
            machines=machines,
        )
        results = []
        for exchange in (
            maker.at(2 * layer),
            ExchangeMaker(shard.plan, world.transport, policy, clock=clock).at(2 * layer + 1),
        ):
            x = torch.round(shard.x * 4).requires_grad_()  # whole numbers: bfloat16 is exact
            out = aggregate(x, Block(shard.structure, exchange), reduce=reduce)
            out.backward(torch.round(out.detach()).clamp(-8, 8) if reduce != "mean" else out)
            results.append((out.detach(), x.grad))
        if not policy.startswith("sampled"):  # relays draw for themselves
            for relayed, direct in zip(*results, strict=True):
                tolerance = 1e-12 if policy == "overlap" or reduce == "sum" else 0.05
                torch.testing.assert_close(relayed, direct, rtol=tolerance, atol=tolerance)
        sent[reduce, policy] = meter.halo_bytes
    return sent


@pytest.mark.parametrize(("machines", "name"), [("aab", "random partition"), ("aba", "directed")])
def test_relayed_layers_are_those_without(machines, name, tmp_path):
    _, graph, partition = awkward_case(name, 3)
    write_partition(graph, partition, tmp_path / "parts")
    run_ranks(compared, 3, tmp_path / "parts", machines)


def least(world, folder):
    """Where relays save too little, rows go directly."""
    shard = load_shard(folder, world)
    saved = plan_relay(shard.plan, "aab", world.transport).saved
    assert 0.0 < saved < 1.0
    exchanges = [
        ExchangeMaker(shard.plan, world.transport, f"relay:least={share}", machines="aab").at(0)
        for share in (saved / 2, (1 + saved) / 2)
    ]
    return [type(exchange.forward).__name__ for exchange in exchanges]


def test_relays_must_pay(tmp_path):
    _, graph, partition = awkward_case("random partition", 3)
    write_partition(graph, partition, tmp_path / "parts")
    for kinds in run_ranks(least, 3, tmp_path / "parts"):
        assert kinds == ["RelayedThere", "OverlappedExchange"]


@pytest.mark.parametrize("name", MOSTLY_SLOW)
def test_awkward_graphs(name, tmp_path):
    _, graph, partition = awkward_case(name, 3)
    write_partition(graph, partition, tmp_path / "parts")
    run_ranks(one_way, 3, tmp_path / "parts", "aba")
