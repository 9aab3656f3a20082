"""`inspect --html` and `--compare`: the numbers are the folder's, the page stands alone."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from awkward import AWKWARD, awkward_case

import gnn_dist as gd
from gnn_dist.cli import main
from gnn_dist.errors import ShardFormatError
from gnn_dist.report import card_page, compare_cards, read_card
from gnn_dist.report.svg import bars, heat_map
from gnn_dist.shard.format import read_meta


class Page(HTMLParser):
    """Collects elements, and checks that they nest."""

    def __init__(self, text):
        super().__init__()
        self.open, self.found, self.text = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def count(self, tag, cls=None):
        return sum(t == tag and (cls is None or a.get("class") == cls) for t, a in self.found)


@pytest.fixture
def folder(tmp_path):
    _, graph, _ = awkward_case("random partition", 4)
    partition = gd.partition_graph(graph, 4, "random")
    gd.write_partition(graph.replace(name="<odd> & name"), partition, tmp_path / "parts")
    return tmp_path / "parts"


@pytest.mark.parametrize("name", AWKWARD)
def test_traffic_is_that_of_the_edges(tmp_path, name):
    _, graph, partition = awkward_case(name, 4)
    gd.write_partition(graph, partition, tmp_path / "parts")
    card = read_card(tmp_path / "parts")
    src, dst = graph.edges()
    owner = partition.assignment
    sent = {(int(u), int(owner[v])) for u, v in zip(src, dst, strict=True) if owner[u] != owner[v]}
    want = np.zeros((4, 4), int)
    for u, reader in sent:
        want[owner[u], reader] += 1
    assert card.traffic == want.tolist()
    assert np.sum(card.traffic, axis=0).tolist() == card.meta.quality["num_halo"]
    Page(card_page(card))


def test_memory_is_that_of_the_arrays(folder):
    card = read_card(folder)
    for part in range(4):
        files = sorted((folder / f"part-000{part}").glob("*.npy"))
        assert card.data_bytes[part] == sum(np.load(file).nbytes for file in files)
        nodes, halo = (card.meta.quality[key][part] for key in ("num_nodes", "num_halo"))
        more = halo * 5 * 4 + 3 * 256 * 4 * (3 * nodes + halo)
        assert card.training_bytes[part] == card.data_bytes[part] + more
    assert card.disk_bytes == sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())


def test_the_page_stands_alone_and_shows_every_part(folder):
    text = card_page(read_card(folder))
    assert not re.search(r"https?://|src=|href=|@import|url\(", text)
    page = Page(text)
    assert page.count("script") == 0
    # nodes, edges, training nodes, halo nodes, memory, entropy: four bars each
    assert page.count("rect", "bar") == 6 * 4
    assert page.count("rect", "cell") == 16
    assert "&lt;odd&gt; &amp; name" in text
    assert "<odd>" not in text
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text


def test_pages_without_labels_and_masks(tmp_path):
    graph = gd.graph_from_edges([0, 1], [1, 0], num_nodes=3)
    gd.write_partition(graph, gd.Partition(np.array([0, 1, 1]), 2), tmp_path / "parts")
    page = Page(card_page(read_card(tmp_path / "parts")))
    assert page.count("rect", "bar") == 4 * 2
    assert "entropy" not in "".join(page.text)


def test_bars_are_as_high_as_their_values():
    text = bars([4.0, None, 1.0], title="a < b", unit="MB", line=2.0)
    heights = [float(h) for h in re.findall(r'class="bar".*?height="([\d.]+)"', text)]
    assert heights == [120.0, 0.0, 30.0]
    assert re.search(r'class="mean".*?y1="60.00"', text)
    assert "a &lt; b" in text
    assert "part 0: 4 MB" in text
    assert "part 1: none" in text
    assert bars([0.0, 0.0], title="t", unit="", line=None).count('height="0.00"') == 2


def test_cells_are_as_dark_as_their_counts():
    text = heat_map([[0, 5], [20_000, 10]], title="t")
    assert re.findall(r'fill-opacity="([\d.]+)"', text) == ["0.000", "0.000", "1.000", "0.001"]
    assert "part 1 to part 0: 20,000 rows" in text
    assert ">20k</text>" in text
    many = heat_map(np.zeros((40, 40), int).tolist(), title="t")
    assert many.count("<rect") == 1600
    assert "count" not in many
    assert many.count("tick") <= 2 * 16


def test_damaged_halo_files_are_named(folder):
    (folder / "part-0002" / "halo.npy").write_bytes(b"x")
    with pytest.raises(ShardFormatError, match=r"part-0002/halo\.npy is damaged"):
        read_card(folder)


def test_inspect_writes_the_page(folder, tmp_path, capfd):
    page = tmp_path / "new" / "report.html"
    assert main(["inspect", str(folder), "--html", str(page)]) == 0
    assert "label entropy       mean" in capfd.readouterr().out
    assert page.read_text().startswith("<!doctype html>")
    assert main(["inspect", str(folder), "--html", str(folder / "meta.json" / "x")]) == 2
    assert "the page cannot be written" in capfd.readouterr().err


def test_inspect_prints_entropies_of_parts(tmp_path, capfd):
    graph = gd.graph_from_edges([0, 1], [1, 0], num_nodes=4, y=np.array([0, 1, 1, -1]))
    parts = gd.Partition(np.array([0, 0, 1, 2]), 3)
    gd.write_partition(graph, parts, tmp_path / "parts")
    assert main(["inspect", str(tmp_path / "parts")]) == 0
    out = capfd.readouterr().out
    assert "mean 0.667, spread 0.500, whole graph 0.918 bits (labelled nodes)" in out
    assert [line.split()[-1] for line in out.splitlines()[-3:]] == ["1.000", "0.000", "-"]


def test_inspect_json_holds_traffic_and_memory(folder, capfd):
    assert main(["inspect", str(folder), "--json"]) == 0
    values = json.loads(capfd.readouterr().out)
    assert values["num_parts"] == 4
    assert values["traffic"] == read_card(folder).traffic
    assert len(values["training_bytes"]) == 4
    assert "arrays" not in values


def test_compare_prints_a_column_for_each_folder(folder, tmp_path, capfd):
    graph = gd.graph_from_edges([0, 1], [1, 0], num_nodes=3)
    gd.write_partition(graph, gd.Partition(np.array([0, 1, 1]), 2, "mine"), tmp_path / "other")
    names = [str(folder), str(tmp_path / "other")]
    assert main(["inspect", *names, "--compare"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0].split() == names
    cells = [re.split(r"\s{2,}", line) for line in lines[1:]]
    rows = {name: values for name, *values in cells}
    quality = read_meta(folder).quality
    assert rows["method"] == ["random", "mine"]
    assert rows["replication factor"] == [f"{quality['replication_factor']:.3f}", "1.667"]
    assert rows["edge cut"] == [f"{quality['edge_cut_fraction']:.1%}", "100.0%"]
    assert rows["max halo"] == [str(max(quality["num_halo"])), "1"]
    assert rows["label entropy mean"] == [f"{quality['label_entropy']['mean']:.3f}", "-"]
    assert rows["max/mean train"][1] == "-"
    assert main(["inspect", *names, "--compare", "--json"]) == 0
    columns = json.loads(capfd.readouterr().out)
    assert [column["folder"] for column in columns] == names
    assert columns[1]["replication factor"] == 5 / 3
    assert columns[1]["label entropy mean"] is None


def test_options_show_where_they_differ(tmp_path):
    graph = gd.graph_from_edges([0, 1], [1, 0], num_nodes=3)
    cards = []
    for name, options in (("a", {"seed": 0, "c": 1}), ("b", {"seed": 1, "c": 1}), ("c", {})):
        parts = gd.Partition(np.array([0, 1, 1]), 2, "mine", options)
        gd.write_partition(graph, parts, tmp_path / name)
        cards.append(read_card(tmp_path / name))
    assert "option c" not in compare_cards(cards[:2])
    assert compare_cards(cards)["option seed"] == ["0", "1", None]


def test_rows_that_no_folder_has_are_left_out(tmp_path):
    graph = gd.graph_from_edges([0, 1], [1, 0], num_nodes=3)
    gd.write_partition(graph, gd.Partition(np.array([0, 1, 1]), 2), tmp_path / "parts")
    assert "label entropy mean" not in compare_cards([read_card(tmp_path / "parts")])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a", "b"], "or several with --compare, got 2"),
        (["a", "--compare", "--html", "x"], "leave out --compare"),
        (["a", "--compare"], "a does not exist"),
        (["--compare"], "got none"),
    ],
)
def test_refusals(words, message, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert main(["inspect", *words]) == 2
    assert message in capfd.readouterr().err
    assert list(Path(tmp_path).iterdir()) == []
