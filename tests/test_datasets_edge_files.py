import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnn_dist.datasets.edge_files import read_edges
from gnn_dist.errors import DatasetError


def text_file(folder, content, name="edges.csv"):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def ends(edges):
    return edges.src.tolist(), edges.dst.tolist()


@pytest.mark.parametrize(
    "content",
    [
        "0,1\n2,0\n",
        "src,dst\n0,1\n2,0",
        "# from a crawl\n\n 0 , 1\n# more\n2,0 # last\n\n",
        '"Source","Target"\n0,1\n2,0\n',
        "dst,src\n1,0\n0,2\n",
        "u,v\r\n0,1\r\n2,0\r\n",
        b"\xef\xbb\xbfsrc,dst\n0,1\n2,0\n",
        b"\xef\xbb\xbf0,1\n2,0\n",
    ],
)
def test_csv_layouts(tmp_path, content):
    edges = read_edges(text_file(tmp_path, content))
    assert ends(edges) == ([0, 2], [1, 0])
    assert edges.src.dtype == edges.dst.dtype == np.int64
    assert edges.weight is None


@pytest.mark.parametrize(
    "content",
    ["0,1,0.5\n2,0,3\n", "src,dst,weight\n0,1,.5\n2,0,3\n", "weight,src,dst\n.5,0,1\n3,2,0\n"],
)
def test_csv_weights(tmp_path, content):
    edges = read_edges(text_file(tmp_path, content))
    assert ends(edges) == ([0, 2], [1, 0])
    assert edges.weight.tolist() == [0.5, 3.0]


def test_tsv(tmp_path):
    assert ends(read_edges(text_file(tmp_path, "0\t1\n2\t0\n", "e.tsv"))) == ([0, 2], [1, 0])


def test_one_edge_and_large_ids_are_exact(tmp_path):
    edges = read_edges(text_file(tmp_path, f"{2**53 + 1},{2**63 - 1}\n"))
    assert ends(edges) == ([2**53 + 1], [2**63 - 1])


def test_header_alone_is_an_empty_list(tmp_path):
    assert ends(read_edges(text_file(tmp_path, "src,dst\n"))) == ([], [])


def test_locate_counts_lines_of_the_file(tmp_path):
    edges = read_edges(text_file(tmp_path, "# note\nsrc,dst\n0,1\n\n2,0\n"))
    assert [edges.locate(i) for i in (0, 1)] == ["line 3", "line 5"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "must hold edges, got an empty file"),
        ("# only a remark\n\n", "must hold edges, got an empty file"),
        ("0\n1\n", "must have two columns, and a third one for weights if any, got 1"),
        ("0,1,2,3\n", "if any, got 4"),
        ("0,1\n1,2,3\n", "line 2 must have 2 values, got 3"),
        ("0,1\n# gap\n1\n", "line 3 must have 2 values, got 1"),
        ("src,dst\n0,1\n1,b\n", "line 3 must hold whole numbers as node ids, got 'b'"),
        ("0,1\n1.5,2\n", "line 2 must hold whole numbers as node ids, got '1.5'"),
        ("0,1\n1e3,2\n", "line 2 must hold whole numbers as node ids, got '1e3'"),
        ("0,1\n1,\n", "line 2 must hold whole numbers as node ids, got ''"),
        ("0,a\n1,2\n", "line 1 must hold whole numbers as node ids, got 'a'"),
        ("0,nan\n", "line 1 must hold whole numbers as node ids, got 'nan'"),
        (f"0,{2**63}\n", f"line 1 must hold whole numbers as node ids, got '{2**63}'"),
        ("0,1,2\n1,2,heavy\n", "line 2 must hold a number as weight, got 'heavy'"),
        ("src,to,time\n0,1,2\n", "called weight, got 'time': rename or drop it"),
        ("src,foo\n0,1\n", "must name one column src and one dst, got src, foo"),
        ("src,from\n0,1\n", "must name one column src and one dst, got src, from"),
        ("weight,a,b\n0,1,2\n", "must name one column src and one dst, got weight, a, b"),
        (b"0,1\n\xff\xfe,2\n", "must be a UTF-8 text file"),
    ],
)
def test_csv_faults_name_file_line_and_value(tmp_path, content, message):
    with pytest.raises(DatasetError, match=r"edges\.csv.* ?" + message):
        read_edges(text_file(tmp_path, content))


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 9)), min_size=1, max_size=8),
    st.booleans(),
)
def test_csv_round_trip(tmp_path_factory, pairs, header):
    lines = ["src,dst"] * header + [f"{a},{b}" for a, b in pairs]
    edges = read_edges(text_file(tmp_path_factory.mktemp("csv"), "\n".join(lines)))
    assert list(zip(*ends(edges), strict=True)) == pairs


def parquet_file(folder, **columns):
    parquet = pytest.importorskip("pyarrow.parquet")
    path = folder / "edges.parquet"
    pyarrow = pytest.importorskip("pyarrow")
    parquet.write_table(pyarrow.table(columns), path)
    return path


def test_parquet(tmp_path):
    path = parquet_file(tmp_path, weight=[0.5, 1.5], target=[1, 0], source=[0, 2])
    edges = read_edges(path)
    assert ends(edges) == ([0, 2], [1, 0])
    assert edges.weight.tolist() == [0.5, 1.5]
    assert edges.locate(1) == "row 1"


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"src": [0, None], "dst": [1, 2]}, "column 'src' must be filled, got a null in row 1"),
        (
            {"src": [0.0], "dst": [1]},
            "column 'src' must hold whole numbers as node ids, got double",
        ),
        ({"a": [0], "b": ["x"]}, "column 'b' must hold whole numbers as node ids, got string"),
        ({"a": [0], "b": [1], "weight": ["x"]}, "column 'weight' must hold numbers as weights"),
        ({"src": [0]}, "must have two columns, and a third one for weights if any, got 1"),
    ],
)
def test_parquet_faults(tmp_path, columns, message):
    with pytest.raises(DatasetError, match=message):
        read_edges(parquet_file(tmp_path, **columns))


def test_damaged_parquet(tmp_path):
    pytest.importorskip("pyarrow")
    with pytest.raises(DatasetError, match="must be a Parquet file, got a damaged one"):
        read_edges(text_file(tmp_path, "PAR1 nothing", "edges.parquet"))


def test_parquet_without_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(DatasetError, match=r"needs the package pyarrow.*gnn-dist\[parquet\]"):
        read_edges(text_file(tmp_path, "", "edges.parquet"))


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.int64])
def test_npy_both_ways(tmp_path, dtype):
    pairs = np.array([[0, 1], [2, 0], [1, 1]], dtype)
    for array in (pairs, pairs.T):
        np.save(tmp_path / "e.npy", array)
        edges = read_edges(tmp_path / "e.npy")
        assert ends(edges) == ([0, 2, 1], [1, 0, 1])
        assert edges.src.dtype == np.int64
    assert edges.locate(2) == "edge 2"


def test_square_npy_is_read_as_two_rows(tmp_path):
    np.save(tmp_path / "e.npy", np.array([[0, 1], [2, 3]]))
    assert ends(read_edges(tmp_path / "e.npy")) == ([0, 1], [2, 3])


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((3, 4), int), r"must have shape \(2, E\) or \(E, 2\), got \(3, 4\)"),
        (np.zeros(4, int), r"got \(4,\)"),
        (np.zeros((2, 4)), "must hold whole numbers as node ids, got float64"),
    ],
)
def test_npy_faults(tmp_path, array, message):
    np.save(tmp_path / "e.npy", array)
    with pytest.raises(DatasetError, match=message):
        read_edges(tmp_path / "e.npy")
