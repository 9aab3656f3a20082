import pytest

from gnn_dist.cli.arguments import as_flags, expand_arguments, load_yaml
from gnn_dist.cli.commands import option_types, with_resumed_config
from gnn_dist.errors import ConfigError

TYPES = option_types()


def test_flags_of_a_mapping():
    values = {"lr": 0.1, "batch_norm": True, "verify": False, "out": "", "none": None}
    assert as_flags(values, TYPES) == [
        *("--lr", "0.1", "--batch-norm", "--no-verify", "--out", "", "--none", "")
    ]


def test_yaml_comes_first_and_words_keep_their_order(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("dataset: parts/x\nlr: 0.5\nbatch_norm: true\n")
    words = ["train", "--lr", "0.1", "--config", str(path), "epochs=3", "verify=false", "parts/y"]
    assert expand_arguments(words, TYPES) == (
        [
            *("train", "--lr", "0.5", "--batch-norm", "--lr", "0.1"),
            *("--epochs", "3", "--no-verify", "parts/y"),
        ],
        "parts/x",
    )
    assert expand_arguments(["train", f"--config={path}"], TYPES)[1] == "parts/x"
    assert expand_arguments([], TYPES) == ([], "")


@pytest.mark.parametrize("word", ["sbm:nodes=10", "--lr=0.1", "./a=b", "=x", "eq=x", "hiden=3"])
def test_words_that_are_no_overrides_stay(word):
    assert expand_arguments(["train", word], TYPES) == (["train", word], "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a\n- b\n", "must hold a mapping of options, got list"),
        ("3\n", "must hold a mapping of options, got int"),
        ("model: {name: sage}\n", "model must be one value"),
        ("a: [1\n", "is no YAML"),
        ("1: 2\n", "must hold a mapping"),
    ],
)
def test_yaml_that_holds_no_options(text, message, tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_yaml(path)


def test_yaml_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        load_yaml(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="must be followed by a YAML file"):
        expand_arguments(["train", "--config"], TYPES)
    (tmp_path / "empty.yaml").write_text("")
    assert load_yaml(tmp_path / "empty.yaml") == {}


@pytest.mark.parametrize("words", [["--resume", "runs/a"], ["--resume=runs/a"], ["resume=runs/a"]])
def test_resuming_reads_the_runs_own_configuration(words):
    assert with_resumed_config(["train", "--epochs", "9", *words]) == [
        *("train", "--config", "runs/a/config.yaml", "--epochs", "9", *words)
    ]
    assert with_resumed_config(["evaluate", *words]) == ["evaluate", *words]


def test_a_value_called_resume_is_no_flag():
    words = ["train", "parts", "--out", "resume", "--epochs", "1"]
    assert with_resumed_config(words) == words


def test_what_follows_a_flag_is_its_value():
    words = ["train", "parts", "--out", "lr=3", "--batch-norm", "lr=4"]
    assert expand_arguments(words, TYPES)[0] == [
        *("train", "parts", "--out", "lr=3", "--batch-norm", "--lr", "4")
    ]


@pytest.mark.parametrize(
    ("value", "flag"),
    [
        *((yes, "--batch-norm") for yes in (True, 1, "yes", "on", "TRUE")),
        *((no, "--no-batch-norm") for no in (False, 0, "no", "off", "False")),
    ],
)
def test_yes_and_no_in_every_spelling(value, flag):
    assert as_flags({"batch_norm": value}, TYPES) == [flag]


@pytest.mark.parametrize("value", ["maybe", 2, None, ""])
def test_neither_yes_nor_no(value):
    with pytest.raises(ConfigError, match="batch_norm must be true or false"):
        as_flags({"batch_norm": value}, TYPES)


def test_a_null_dataset_is_none(tmp_path):
    (tmp_path / "run.yaml").write_text("dataset: null\n")
    assert expand_arguments(["train", "--config", str(tmp_path / "run.yaml")], TYPES)[1] == ""
