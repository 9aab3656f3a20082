"""Edge files as streams: every format gives the same edges, and damage names its place."""

import gzip
import os

import numpy as np
import pytest

from gnn_dist.datasets import stream_files
from gnn_dist.datasets.edge_files import read_edges
from gnn_dist.datasets.edge_streams import open_edge_stream, write_edges
from gnn_dist.datasets.synthetic_streams import open_stream
from gnn_dist.edge_stream import EdgeStream
from gnn_dist.errors import DatasetError

NUMBERS = b"".join(b"%d,%d\n" % (i * i % 9973, i) for i in range(15000))
EDGES = np.array([[0, 3], [2, 1], [4, 4], [2, 1], [1, 0]])


def listed(stream, chunk_edges=2):
    chunks = list(stream.chunks(chunk_edges))
    assert all(len(src) <= chunk_edges for src, _ in chunks)
    return np.concatenate([np.zeros((0, 2), np.int64), *[np.stack(c, 1) for c in chunks]])


def write_parquet(path, edges, **more):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {"dst": edges[:, 1], "src": edges[:, 0]}
    parquet.write_table(pyarrow.table(columns), path, row_group_size=2)


def text(edges, delimiter=",", head=""):
    return head + "".join(f"{u}{delimiter}{v}\n" for u, v in edges)


WRITERS = {
    "e.bin": lambda path, e: path.write_bytes(e.astype("<i4").tobytes()),
    "e.npy": lambda path, e: np.save(path, e),
    "t.npy": lambda path, e: np.save(path, e.T.astype(np.uint32)),
    "e.csv": lambda path, e: path.write_text(text(e)),
    "named.csv": lambda path, e: path.write_text(text(e[:, ::-1], head="# x\n\ndst,src\n")),
    "odd.csv": lambda path, e: path.write_text(text(e, ", ").replace("\n", "  # note\r\n\n")),
    "weights.csv": lambda path, e: path.write_text(text(e).replace("\n", ",0.5\n")),
    "open.csv": lambda path, e: path.write_text(text(e).rstrip("\n")),
    "e.tsv": lambda path, e: path.write_text(text(e, "\t")),
    "e.csv.gz": lambda path, e: path.write_bytes(gzip.compress(text(e).encode())),
    "e.parquet": write_parquet,
}


@pytest.mark.parametrize("file", WRITERS)
@pytest.mark.parametrize("block_bytes", [1, 9, 1 << 24])
def test_every_format_gives_the_edges(tmp_path, monkeypatch, file, block_bytes):
    monkeypatch.setattr(stream_files, "BLOCK_BYTES", block_bytes)
    WRITERS[file](tmp_path / file, EDGES)
    stream = open_edge_stream(tmp_path / file)
    assert np.array_equal(listed(stream), EDGES)
    assert np.array_equal(listed(stream, 100), EDGES)
    assert (stream.num_nodes, stream.num_edges) == (5, 5)
    assert stream.name == file.split(".")[0]
    assert open_edge_stream(tmp_path / file, num_nodes=9).num_nodes == 9


@pytest.mark.parametrize("file", ["e.bin", "e.npy", "e.csv.gz", "e.csv"])
def test_no_edges(tmp_path, file):
    WRITERS[file](tmp_path / file, EDGES[:0])
    stream = open_edge_stream(tmp_path / file, num_nodes=3)
    assert (len(listed(stream)), stream.num_nodes, stream.num_edges) == (0, 3, 0)
    assert open_edge_stream(tmp_path / file).num_nodes == 0


def test_ids_beyond_int32(tmp_path):
    large = np.array([[2**31, 5], [7, 2**40], [0, 1]])
    (tmp_path / "e.bin").write_bytes(large.astype("<i8").tobytes())
    np.save(tmp_path / "e.npy", large)
    (tmp_path / "e.csv").write_text(text(large))
    for name in ("e.bin", "e.npy", "e.csv"):
        stream = open_edge_stream(tmp_path / name, id_dtype="int64")
        assert np.array_equal(listed(stream), large)
        assert stream.num_nodes == 2**40 + 1
    copy = tmp_path / "copy.bin"
    with pytest.raises(DatasetError, match="int64"):
        write_edges(stream, copy)
    assert write_edges(stream, copy, id_dtype="int64") == 3
    assert copy.read_bytes() == (tmp_path / "e.bin").read_bytes()


def test_what_is_written_is_read(tmp_path):
    np.save(tmp_path / "e.npy", EDGES)
    write_edges(open_edge_stream(tmp_path / "e.npy"), tmp_path / "e.bin")
    assert np.array_equal(listed(open_edge_stream(tmp_path / "e.bin")), EDGES)
    broken = EdgeStream(lambda size: iter(()), 3, 1)
    with pytest.raises(ValueError, match="num_edges=1"):
        write_edges(broken, tmp_path / "f.bin")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["e.bin", "e.npy"]


def test_several_files(tmp_path):
    for i, piece in enumerate((EDGES[:2], EDGES[2:2], EDGES[2:])):
        WRITERS["e.bin"](tmp_path / f"part-{i}.bin", piece)
    np.save(tmp_path / "y.npy", np.array([0, 1, 1, 2, 0, 3]))
    for path in (tmp_path, tmp_path / "part-*.bin"):
        stream = open_edge_stream(path)
        assert np.array_equal(listed(stream), EDGES)
    assert open_edge_stream(tmp_path).num_nodes == 6
    assert open_edge_stream(tmp_path).num_classes == 4
    (tmp_path / "other.csv").write_text("0,1\n")
    with pytest.raises(DatasetError, match="one kind"):
        open_edge_stream(tmp_path)
    with pytest.raises(DatasetError, match="got none"):
        open_edge_stream(tmp_path / "*.tsv")
    with pytest.raises(DatasetError, match="check the path"):
        open_edge_stream(tmp_path / "absent.bin")


def test_the_open_graph_benchmarks_raw_files(tmp_path):
    (tmp_path / "raw").mkdir()
    WRITERS["e.csv.gz"](tmp_path / "raw" / "edge.csv.gz", EDGES)
    (tmp_path / "raw" / "num-node-list.csv.gz").write_bytes(gzip.compress(b"8\n"))
    stream = open_edge_stream(tmp_path)
    assert stream.num_nodes == 8
    assert np.array_equal(listed(stream), EDGES)
    (tmp_path / "raw" / "num-node-list.csv.gz").write_bytes(gzip.compress(b"many\n"))
    with pytest.raises(DatasetError, match=r"num-node-list.csv.gz must hold the number"):
        open_edge_stream(tmp_path)


def test_node_data_are_mapped(tmp_path):
    np.save(tmp_path / "edges.npy", EDGES)
    np.save(tmp_path / "x.npy", np.ones((7, 2), np.float32))
    np.save(tmp_path / "labels.npy", np.array([0, 1, -1, 0, 1, 2, 0]))
    np.save(tmp_path / "train_mask.npy", np.arange(7) < 2)
    for path in (tmp_path, tmp_path / "edges.npy"):
        stream = open_edge_stream(path)
        assert (stream.num_nodes, stream.num_classes) == (7, 3)
        assert isinstance(stream.x.base, np.memmap) or isinstance(stream.x, np.memmap)
        assert stream.train_mask.tolist() == [True] * 2 + [False] * 5
    np.save(tmp_path / "x.npy", np.full((7, 2), np.nan))
    with pytest.raises(DatasetError, match="x must be finite"):
        open_edge_stream(tmp_path)
    with pytest.raises(DatasetError, match=r"num_nodes=3, F"):
        open_edge_stream(tmp_path / "edges.npy", num_nodes=3)


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("e.bin", b"12345678123", "cut off at byte 8"),
        ("e.bin", np.array([0, 1, -3, 1], "<i4").tobytes(), r"byte 8: .*got -3 -> 1"),
        ("e.csv", b"0,1\n1,x\n", "line 2 must hold whole numbers.*'x'"),
        ("e.csv", b"src,dst\n0,1\n1,2.5\n", "line 3 must hold whole numbers.*'2.5'"),
        ("e.csv", b"0,1\n\n# x\n1\n", "line 4 must have 2 values, got 1"),
        ("e.csv", b"0,1\n1,2,3\n4\n", "line 2 must have 2 values, got 3"),
        ("e.csv", b"0,1\n1,\n", "line 2 must hold whole numbers"),
        ("e.csv", b"0,1\n1 2,3\n", "line 2 must hold whole numbers.*'1 2'"),
        ("e.csv", b"0,1\n1\t2,\n3,4\n", r"line 2 must hold whole numbers.*'1\\t2'"),
        ("e.csv", b"0,1\r\n1\v2,\n3,4\n", r"line 2 must hold whole numbers.*'1\\x0b2'"),
        ("e.bin", np.array([7, 0, 1, 2], "<i8").tobytes(), "looks like int64.*--id-dtype int64"),
        ("e.csv", b"0,1\n1,9223372036854775808\n", "line 2 must hold whole numbers"),
        ("e.csv", b"a,b\n# c\n0,1\n1,-2\n", "line 4: .*got 1 -> -2"),
        ("e.csv", b"0,1\n\xff\n", "UTF-8"),
        ("e.csv", b"0\n", "two columns"),
        ("e.csv.gz", gzip.compress(NUMBERS)[:-200], r"cut off behind byte 1[45]\d{4} "),
        ("e.csv.gz", b"0,1\n", "damaged or cut off behind byte 0"),
        ("e.npy", b"nothing", "readable .npy"),
        ("e.parquet", b"nothing", "Parquet|pyarrow"),
    ],
)
def test_damage_names_its_place(tmp_path, name, content, match):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DatasetError, match=match) as caught:
        list(open_edge_stream(tmp_path / name).chunks())
    assert str(tmp_path / name) in str(caught.value)


def test_a_file_cut_off_while_it_is_read(tmp_path):
    WRITERS["e.bin"](tmp_path / "e.bin", EDGES)
    stream = open_edge_stream(tmp_path / "e.bin", num_nodes=5)
    (tmp_path / "e.bin").write_bytes(b"12345678" * 2)
    with pytest.raises(DatasetError, match="got only"):
        list(stream.chunks())


def test_an_id_beyond_n_names_its_place(tmp_path):
    for name, place in [("e.bin", "byte 16"), ("e.csv", "line 3"), ("e.npy", "edge 2")]:
        WRITERS[name](tmp_path / name, EDGES)
        with pytest.raises(DatasetError, match=rf"{place}: .*0 to 3 \(N = 4\), got 4 -> 4"):
            list(open_edge_stream(tmp_path / name, num_nodes=4).chunks(1))


def test_wrong_arrays_are_refused(tmp_path):
    np.save(tmp_path / "e.npy", np.zeros((3, 3), np.int64))
    with pytest.raises(DatasetError, match=r"\(2, E\)"):
        open_edge_stream(tmp_path / "e.npy")
    np.save(tmp_path / "e.npy", np.zeros((2, 3)))
    with pytest.raises(DatasetError, match="whole numbers"):
        open_edge_stream(tmp_path / "e.npy")
    (tmp_path / "e.bin").write_bytes(b"")
    with pytest.raises(DatasetError, match="id_dtype"):
        open_edge_stream(tmp_path / "e.bin", id_dtype="int16")


def test_a_star_may_be_read_as_int32(tmp_path):
    np.array([[7, 0], [1, 0]], "<i4").tofile(tmp_path / "e.bin")
    stream = open_edge_stream(tmp_path / "e.bin", id_dtype="int32")
    assert listed(stream).tolist() == [[7, 0], [1, 0]]


def test_a_flipped_bit_in_parquet_is_found(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "edges.parquet"
    table = pa.table({"src": np.arange(99), "dst": np.arange(99)})
    pq.write_table(table, path, write_page_checksum=True, compression="none", use_dictionary=False)
    content = bytearray(path.read_bytes())
    content[content.index(np.arange(50, 60).tobytes())] ^= 1
    path.write_bytes(content)
    for read in (lambda: list(open_edge_stream(path).chunks()), lambda: read_edges(path)):
        with pytest.raises(DatasetError, match="damaged"):
            read()


def test_columns_of_one_name_are_refused_in_one_line(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "edges.parquet"
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["src", "src"]), path)
    for read in (open_edge_stream, read_edges):
        with pytest.raises(DatasetError, match=r"^[^\n]*must name one column src[^\n]*$"):
            read(path)


def test_what_cannot_be_written_is_named(tmp_path):
    stream = open_stream("rmat:scale=4")
    with pytest.raises(DatasetError, match=r"must end in \.bin"):
        write_edges(stream, tmp_path / "e.csv")
    (tmp_path / "file").touch()
    (tmp_path / "folder.bin").mkdir()
    for name in ("file/e.bin", "absent/e.bin", "folder.bin"):
        with pytest.raises(DatasetError, match=f"cannot write .*{name}"):
            write_edges(stream, tmp_path / name)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder.bin"]


def test_the_version_follows_node_data(tmp_path):
    WRITERS["e.bin"](tmp_path / "edges.bin", EDGES)
    np.save(tmp_path / "train_mask.npy", np.arange(5) < 2)
    first = open_edge_stream(tmp_path).version
    np.save(tmp_path / "train_mask.npy", np.arange(5).astype(np.int16) < 3)
    os.utime(tmp_path / "train_mask.npy", (1, 1))
    assert open_edge_stream(tmp_path).version != first


@pytest.mark.parametrize("options", [{"num_nodes": 5}, {"id_dtype": "int64"}])
def test_options_of_files_are_not_of_drawn_graphs(options):
    with pytest.raises(DatasetError, match="rmat is drawn"):
        open_stream("rmat:scale=4", **options)


def test_versions_follow_the_files(tmp_path):
    WRITERS["e.bin"](tmp_path / "e.bin", EDGES)
    first = open_edge_stream(tmp_path / "e.bin").version
    assert open_edge_stream(tmp_path / "e.bin").version == first
    WRITERS["e.bin"](tmp_path / "e.bin", EDGES[:4])
    assert open_edge_stream(tmp_path / "e.bin").version != first


def test_streams_by_name(tmp_path):
    stream = open_stream("rmat:scale=6,degree=3,symmetric=true,seed=4")
    edges = listed(stream, 100)
    assert (stream.num_nodes, stream.num_edges, len(edges)) == (64, 384, 384)
    assert stream.name == "rmat:scale=6,degree=3,symmetric=true,seed=4"
    assert np.array_equal(edges[::2], edges[1::2, ::-1])
    assert not np.array_equal(edges, listed(open_stream("rmat:scale=6,degree=3,symmetric=true")))
    blocks = open_stream("sbm:nodes=500,blocks=5")
    label, edges = blocks.y, listed(blocks, 1000)
    assert (blocks.num_edges, blocks.num_classes) == (10_000, 5)
    assert abs((label[edges[:, 0]] == label[edges[:, 1]]).mean() - 0.8) < 0.02
    assert open_stream("sbm:nodes=1,blocks=1,degree_in=0,degree_out=0").num_edges == 0
    WRITERS["e.bin"](tmp_path / "e.bin", EDGES)
    assert np.array_equal(listed(open_stream(str(tmp_path / "e.bin"))), EDGES)


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("rmat:scale=31", r"'scale' of rmat must be an integer in 0\.\.30"),
        ("rmat:a=0.9", "add up to at most 1"),
        ("sbm:nodes=3,blocks=4", "at most nodes=3"),
        ("sbm:size=3", "size"),
        ("absent", "no edge file"),
    ],
)
def test_wrong_names_are_refused(name, match):
    with pytest.raises(DatasetError, match=match):
        open_stream(name)
