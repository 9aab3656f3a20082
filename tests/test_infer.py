"""Inference layer by layer is `Trainer.predict`, in bounded memory."""

import gc
import weakref

import numpy as np
import pytest
import torch
from awkward import AWKWARD, NUM_FEATURES, awkward_case
from torch.utils._python_dispatch import TorchDispatchMode

import gnn_dist as gd
from gnn_dist.errors import ConfigError
from gnn_dist.halo.load import load_shard
from gnn_dist.nn.models import ModelShape, build_model
from gnn_dist.ops.csr import CSR
from gnn_dist.ops.spmm import SparseRows
from gnn_dist.shard.format import write_partition
from gnn_dist.testing import run_ranks
from gnn_dist.train.layerwise import LayerMemory, chunk_ranges, infer

MODELS = (
    {"model": "gcn"},
    {"model": "sage", "aggr": "mean"},
    {"model": "sage", "aggr": "sum"},
    {"model": "sage", "aggr": "max"},
    {"model": "gat", "heads": 2},
    {"model": "gin"},
    {"model": "sage", "batch_norm": True},
    {"model": "gcn", "layers": 1},
)
PRECISION = {"fp64": 1e-10, "fp32": 1e-6}
SMALL = LayerMemory(chunk_rows=7, halo_bytes=64)  # several chunks, halo rows in a file
ROOMY = LayerMemory()


def trainer_of(shard, world, options):
    config = gd.TrainConfig(
        **{"hidden": 8, "layers": 3, "tensorboard": False, "heads": 2, **options}
    )
    return gd.Trainer(config, shard, world)


def differences(world, folders, precisions, models):
    """The largest difference from `predict`, relative to its largest number, of each case."""
    found = []
    for folder in folders:
        shard = load_shard(folder, world)
        for precision in precisions:
            for options in models:
                trainer = trainer_of(shard, world, {**options, "precision": precision})
                trainer.train_step()  # running statistics, parameters off their start
                expected = trainer.predict()
                for memory in (SMALL, ROOMY):
                    dtype = next(trainer.model.parameters()).dtype
                    result = infer(trainer.model, shard, world, memory=memory)
                    assert result.output.dtype == dtype
                    assert result.output.shape == expected.shape
                    assert len(result.embeddings) == shard.num_owned
                    scale = max(1.0, float(expected.abs().max())) if len(expected) else 1.0
                    off = (result.output - expected).abs().max() if len(expected) else 0.0
                    found.append((folder.name, precision, options, float(off) / scale))
    return found


def written(tmp_path, names, num_parts):
    folders = []
    for name in names:
        case = awkward_case(name, num_parts)
        folders.append(tmp_path / name.replace(" ", "-"))
        write_partition(case.graph, case.partition, folders[-1])
    return folders


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("world_size", "names", "precisions"),
    [
        (1, ("directed", "edge-weighted"), ["fp64"]),
        (2, ("empty part", "star"), ["fp64"]),
        (3, ("duplicate edges", "empty part"), ["fp64"]),
        *(
            pytest.param(size, AWKWARD, list(PRECISION), marks=pytest.mark.slow)
            for size in (1, 2, 3)
        ),
    ],
)
def test_outputs_are_those_of_predict(world_size, names, precisions, tmp_path):
    folders = written(tmp_path, names, 3)
    for found in run_ranks(differences, world_size, folders, precisions, MODELS):
        assert len(found) == 2 * len(MODELS) * len(precisions) * len(names)
        for folder, precision, options, off in found:
            assert off < PRECISION[precision], (folder, precision, options, off)


def other_features(world, folder):
    """Outputs from sparse features, and from mapped ones of half the width."""
    shard = load_shard(folder, world)
    found = []
    csr = CSR(
        torch.arange(shard.num_owned + 1) * NUM_FEATURES,
        torch.arange(NUM_FEATURES, dtype=torch.int32).repeat(shard.num_owned),
        NUM_FEATURES,
    )
    sparse = shard.replace(features=SparseRows(csr, shard.x.flatten()))
    for options in MODELS:
        trainer = trainer_of(shard, world, {**options, "precision": "fp32"})
        expected = trainer.predict()
        for memory in (SMALL, ROOMY):
            output = infer(trainer.model, sparse, world, memory=memory).output
            found.append((options, output - expected))
    narrow = load_shard(folder, world, spill=folder.parent)
    narrow = narrow.replace(features=narrow.x.half())
    wide = narrow.replace(features=narrow.x.float())
    trainer = trainer_of(wide, world, {"model": "sage"})
    output = infer(trainer.model, narrow, world, memory=SMALL).output
    found.append(("float16", output - trainer.predict()))
    # What is in files is read there.
    mapped = load_shard(folder, world, spill=folder.parent)
    trainer = trainer_of(mapped, world, {"model": "sage", "precision": "fp64"})
    before = mapped.x.clone()
    trainer.model.train()
    output = infer(trainer.model, mapped, world, memory=SMALL).output
    assert trainer.model.training
    found.append(("mapped", output - trainer.predict()))
    assert torch.equal(mapped.x, before)
    if world.world_size > 1:
        # One rank cannot, and all hear of it.
        nowhere = LayerMemory(halo_bytes=0, work="nowhere" if world.rank == 1 else None)
        with pytest.raises(ConfigError, match="there is no room"):
            infer(trainer.model, mapped, world, memory=nowhere)
    half = trainer_of(shard, world, {"model": "sage", "precision": "bf16"})
    output = infer(half.model, shard, world, dtype=torch.bfloat16).output
    found.append(("bf16", (output - half.predict()) / 2e4))
    return [(name, float(off.abs().max())) for name, off in found if len(off)]


@pytest.mark.parametrize("world_size", [1, 2])
def test_sparse_half_and_mapped_features(world_size, tmp_path):
    [folder] = written(tmp_path, ["random partition"], 2)
    for found in run_ranks(other_features, world_size, folder):
        assert len(found) == 2 * len(MODELS) + 3
        for name, off in found:
            assert off < 2e-6, name


def vertex_cut(world, folder):
    shard = load_shard(folder, world)
    found = []
    for options in MODELS:
        if options["model"] == "gat" and world.world_size > 1:
            model = build_model("gat", ModelShape(NUM_FEATURES, 8, 3, heads=2)).double()
            with pytest.raises(ConfigError, match="attention"):
                infer(model, shard, world)
            continue
        trainer = trainer_of(shard, world, {**options, "precision": "fp64"})
        trainer.train_step()
        result = infer(trainer.model, shard, world, memory=SMALL)
        assert len(result.embeddings) == shard.num_owned
        found.append(float((result.output - trainer.predict()).abs().max()))
    return found


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_vertex_cut_gives_the_same(world_size, tmp_path):
    graph = awkward_case("edge-weighted").graph
    gd.write_partition(graph, gd.partition_graph(graph, 2, "hdrf"), tmp_path / "parts")
    for found in run_ranks(vertex_cut, world_size, tmp_path / "parts"):
        assert len(found) >= len(MODELS) - 1
        assert max(found) < 1e-10


class Alive(TorchDispatchMode):
    """Counts the bytes of the tensors that functions returned and that are still there."""

    def __init__(self):
        super().__init__()
        self.peak, self.mapped = 0, set()
        self._seen = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().nbytes() > 1024:
                self._seen[id(tensor)] = weakref.ref(tensor)
        alive = {}
        for key, reference in list(self._seen.items()):
            tensor = reference()
            if tensor is None:
                del self._seen[key]
                continue
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self.mapped:
                alive[storage.data_ptr()] = storage.nbytes()
        self.peak = max(self.peak, sum(alive.values()))
        return out


WIDTH = 64


def peaks(world, folder):
    """Bytes of tensors at the worst moment: of `predict`, and of `infer` with less and less."""
    shard = load_shard(folder, world)
    found = []
    for options in ({"model": "sage"}, {"model": "gat"}):
        trainer = trainer_of(
            shard, world, {**options, "layers": 4, "hidden": WIDTH, "precision": "fp64"}
        )
        with Alive() as whole:
            trainer.predict()
        row = [whole.peak]
        for chunk_rows in (1000, 250):
            alive = Alive()
            real = torch.frombuffer

            def mapped(*args, counter=alive, real=real, **kwargs):
                rows = real(*args, **kwargs)
                counter.mapped.add(rows.untyped_storage().data_ptr())
                return rows

            torch.frombuffer = mapped
            gc.collect()
            memory = LayerMemory(chunk_rows=chunk_rows, halo_bytes=1 << 18)
            with alive:
                infer(trainer.model, shard, world, memory=memory)
            torch.frombuffer = real
            assert alive.mapped
            row.append(alive.peak)
        found.append((options["model"], shard.num_owned, shard.num_halo, row))
    return found


def test_memory_is_bounded(tmp_path):
    """Two tables of owned rows, and a few rows for each source of a chunk; no halo in memory."""
    graph = gd.load_dataset(f"sbm:nodes=4000,blocks=4,degree_in=8,degree_out=4,features={WIDTH}")
    gd.write_partition(graph, gd.partition_graph(graph, 2, "random"), tmp_path / "parts")
    for found in run_ranks(peaks, 2, tmp_path / "parts"):
        for model, num_owned, num_halo, (whole, *some) in found:
            table = 8 * WIDTH * num_owned
            assert num_halo > 0.9 * num_owned
            for chunk_rows, peak in zip((1000, 250), some, strict=True):
                # Input and output of a layer; a chunk's sources, transformed, summed; its entries;
                # 256 KiB that travel; a number or two for each node.
                chunk = chunk_rows * (4 * 8 * WIDTH + 100)
                limit = 2 * table + chunk + (1 << 18) + 32 * num_owned
                assert peak < limit, (model, chunk_rows, peak, limit, whole, table)
            assert some[1] < some[0] < whole, model


def test_chunks_are_no_larger_than_asked():
    rng = np.random.default_rng(0)
    counts = torch.from_numpy(rng.integers(0, 9, 50))
    counts[7] = 40
    indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    csr = CSR(indptr, torch.zeros(int(indptr[-1]), dtype=torch.int32), 1000)
    for most in (1, 9, 10, 30, 999):
        ranges = list(chunk_ranges(csr, most))
        assert [begin for begin, _ in ranges] == [0, *(end for _, end in ranges[:-1])]
        assert ranges[-1][1] == 50
        for begin, end in ranges:
            assert end - begin == 1 or end - begin + int(counts[begin:end].sum()) <= most
    assert list(chunk_ranges(csr, 1000)) == [(0, 50)]
    for options in ({"chunk_rows": 0}, {"halo_bytes": -1}):
        with pytest.raises(ConfigError, match="chunk_rows must be at least 1 and halo_bytes"):
            LayerMemory(**options)
