"""The grammar of halo policies: what is read, written, and refused with which sentence."""

import pytest

from gnn_dist.errors import ConfigError
from gnn_dist.halo.courier import DIRECTIONS, Place
from gnn_dist.halo.policy import TERMS, HaloPolicy, Overlap, Sampled
from gnn_dist.train.config import TrainConfig


def test_nothing_said_is_overlap_of_all_rows():
    assert HaloPolicy() == HaloPolicy.parse("overlap") == HaloPolicy(Overlap(), None, None)
    assert HaloPolicy().exact
    assert str(HaloPolicy()) == "overlap"


def test_evaluation_is_exact_and_keeps_the_bound_on_memory():
    evaluation = {
        "overlap": "overlap",
        "sampled+bf16": "overlap",
        "remat:buffer=1M+fp16": "remat:buffer=1M",
    }
    for training, exact in evaluation.items():
        policy = HaloPolicy.parse(training).for_evaluation
        assert policy.exact
        assert str(policy) == exact


@pytest.mark.parametrize("name", TERMS)
def test_every_word_alone_is_a_policy_that_can_be_written_again(name):
    policy = HaloPolicy.parse(name)
    assert HaloPolicy.parse(str(policy)) == policy
    assert name in str(policy)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("bf16+overlap", "overlap+bf16"),
        (" sampled:p=0.25 + blocking ", "blocking+sampled:p=0.25"),
        ("sampled", "overlap+sampled"),
        ("sampled:p=0.1", "overlap+sampled"),
        ("fp16+sampled:p=1", "overlap+sampled:p=1+fp16"),
        ("bf16+delayed:r=2,bins=5,warmup=1", "delayed:warmup=1,r=2+bf16"),
        ("pipelined:smooth=0.50", "pipelined:smooth=0.5"),
        ("ssp:s=2", "ssp"),
        ("bf16+remat:buffer=0.5 GiB", "remat:buffer=512M+bf16"),
        ("remat:buffer=256M", "remat"),
        ("remat:buffer=1000", "remat:buffer=1000"),
    ],
)
def test_terms_in_any_order(text, canonical):
    policy = HaloPolicy.parse(text)
    assert str(policy) == canonical
    assert HaloPolicy.parse(canonical) == policy


def test_options_have_their_types():
    assert HaloPolicy.parse("sampled:p=1").select == Sampled(1.0)
    assert isinstance(HaloPolicy.parse("sampled:p=1").select.p, float)


def test_what_is_held_may_be_sampled_and_used_in_any_way():
    assert HaloPolicy.parse("sampled").sums_only
    assert HaloPolicy.parse("local").sums_only
    assert not HaloPolicy.parse("delayed+sampled").sums_only
    assert HaloPolicy.parse("delayed+sampled").holds
    assert not HaloPolicy.parse("local").holds
    assert not any(HaloPolicy.parse(name).exact for name in ("local", "delayed", "ssp"))


def test_what_is_remembered_from_step_to_step_is_part_of_a_run():
    kept = ("pipelined", "ssp+bf16", "adaptive", "quantized:feedback=true", "relay+adaptive")
    assert all(HaloPolicy.parse(text).stateful for text in kept)
    none = ("overlap", "remat+fp16", "sampled+quantized", "local", "relay")
    assert not any(HaloPolicy.parse(text).stateful for text in none)


def test_gradients_of_clones_are_gradients():
    of_values = ("forward", "up", "down", "forward direct", "forward spread")
    for direction in DIRECTIONS:
        assert Place(0, direction).carries_gradients == (direction not in of_values)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no halo policy ''"),
        ("overlop", "no halo policy 'overlop': .*overlap"),
        ("overlap+", r"no halo policy '' in 'overlap\+'"),
        ("bf16+fp16", r"one of bf16 and fp16, which both say what rows are on the wire"),
        ("blocking+overlap", "both say when rows are waited for"),
        ("sampled:p=0", r"p must lie in \(0, 1\], got 0"),
        ("sampled:p=nan", r"p must lie in \(0, 1\], got nan"),
        ("sampled:p=half", "sampled: p must be of type float, got 'half'"),
        ("sampled:q=1", "sampled takes options as key=value of: p; got 'q=1'"),
        (
            "delayed:r=1,bins=2,r=3",
            "delayed takes each option once, got r twice in 'r=1,bins=2,r=3'",
        ),
        ("sampled:p", "sampled takes options as key=value of: p; got 'p'"),
        ("delayed:r=-1", "delayed: r must be at least 0, got -1"),
        ("delayed:r=0.5", "delayed: r must be of type int, got '0.5'"),
        ("delayed:bins=0", "delayed: bins must be at least 1, got 0"),
        ("ssp:warmup=0", "ssp: warmup must be at least 1, got 0: in the first step"),
        ("ssp:s=-2", "ssp: s must be at least 0, got -2"),
        ("pipelined:smooth=1", r"smooth must lie in \[0, 1\), got 1"),
        ("pipelined:smooth=nan", r"smooth must lie in \[0, 1\), got nan"),
        ("delayed+ssp", "one of delayed and ssp, which both say when rows are waited for"),
        ("local+sampled", "local and sampled do not go together, because nothing travels"),
        ("delayed+quantized:feedback=true", "delayed leaves rows out"),
        ("relay+local", "local and relay do not go together, because nothing travels"),
        ("bf16+local", "local and bf16 do not go together, because nothing travels"),
        ("remat:buffer=much", "remat: buffer: a size must be a number .* got 'much'"),
        ("remat+sampled", "remat does not go with sampled: its chunks are ranges of the whole"),
        ("remat+overlap", "both say when rows are waited for"),
        ("remat+adaptive", "adaptive agrees on widths .* but remat has rounds that some leave out"),
        ("remat+quantized:feedback=true", "remat leaves rows out"),
        ("remat+relay", "remat does not go with relay: a relay would hold"),
        ("overlap:p=1", "overlap takes options as key=value of: none; got 'p=1'"),
    ],
)
def test_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        HaloPolicy.parse(text)
    with pytest.raises(ConfigError, match=message):
        TrainConfig(halo=text)
