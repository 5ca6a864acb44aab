"""The verdict `uses` can be reached: by copying from further away than training reached.

Documents of `data=echo` repeat passages of their own. The copier is a model whose weights are set
by hand: layer 0 fetches the two tokens before, layer 1 looks for the place where both words before
are those of here, wherever it is, and says what followed there.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import save_model

from posbench import model as models
from posbench import registry, runs, settings, train
from posbench.data.corpora import echo
from posbench.data.dataset import load
from posbench.files import file_sha256

L, WORDS = 64, 64
#: logit of a place for each word that fits, and of a word that is copied
FIT, SURE = 4.5, 7.0
#: layer 0 sees the word before, layer 1 any: what learns to copy in half a minute
LEARNS = ["posenc=none", "model.window=[2,null]", "model.d_model=64", "model.n_heads=2"]


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> runs.Run:
    """A run of one step, which has learnt nothing."""
    data = registry.get("data", "echo").Config(
        documents=100, size=1100, words=WORDS, near=4, far=512, share=0.75
    )
    config = settings.RunConfig(
        posenc=registry.get("posenc", "layers").Config(pattern=["t5", "none"]),
        positions=registry.get("positions", "standard").Config(),
        data=data,
        model=settings.ModelConfig(
            d_model=4 * WORDS, n_layers=2, n_heads=2, hidden=8, tied=False, embed_scale=1.0
        ),
        train=settings.TrainConfig(
            steps=1, seq_len=L, batch_size=2, threads=1, device="cpu", compile="false"
        ),
    )
    folder = tmp_path_factory.mktemp("echo") / "runs" / "default" / "copier"
    train.run(config, folder, load(data), argv=[])
    return runs.Run.open(folder)


@torch.no_grad()
def set_by_hand(model: models.Decoder, words: list[int]) -> None:
    """Stream: word here, word before, word before that, copied word; one dimension each."""
    for parameter in model.parameters():
        parameter.fill_(1.0 if parameter.ndim == 1 else 0.0)
    n, one = len(words), torch.eye(len(words))
    here, before, earlier, copied = (slice(i * n, (i + 1) * n) for i in range(4))
    model.embedding.weight[words, here] = one
    table = model.posenc.for_layer(0)[0].bias
    fetch, find = (block.attention for block in model.blocks)
    for head, (distance, place) in enumerate(((1, before), (2, earlier))):
        table[distance, head] = 60.0  # nothing else counts
        first = slice(2 * n * head, 2 * n * head + n)
        fetch.v_proj.weight[first, here] = one / (4 * n) ** 0.5  # the norm's factor for one word
        fetch.o_proj.weight[place, first] = one
    three = (4 * n / 3) ** 0.5  # its factor for three words
    gain = (FIT * (2 * n) ** 0.5) ** 0.5 / three
    first, second = slice(0, n), slice(n, 2 * n)
    find.q_proj.weight[first, here] = find.q_proj.weight[second, before] = gain * one
    find.k_proj.weight[first, before] = find.k_proj.weight[second, earlier] = gain * one
    find.v_proj.weight[first, here] = one / three
    find.o_proj.weight[copied, first] = one
    model.head.weight[:, here] = -4.0  # tokens that are no word
    model.head.weight[words] = 0.0
    model.head.weight[words, copied] = SURE / n**0.5 * one


@pytest.fixture(scope="module")
def copier(begun: runs.Run, tmp_path_factory: pytest.TempPathFactory) -> runs.Run:
    """The run with the weights set."""
    folder = tmp_path_factory.mktemp("copier") / "runs" / "default" / "copier"
    shutil.copytree(begun.path, folder)
    run = runs.Run.open(folder)
    tokenizer = load(run.config.data).tokenizer
    spelled = [f" {echo._spelled(word)}" for word in range(WORDS)]
    ids = tokenizer.encode(spelled)
    assert [len(one) for one in ids] == [1] * WORDS
    model = models.build(run.config, tokenizer.vocab_size)
    set_by_hand(model, [int(one[0]) for one in ids])
    file = folder / runs.CHECKPOINT / runs.WEIGHTS
    save_model(model, str(file))
    run.update(weights_sha256=file_sha256(file))
    return runs.Run.open(folder)


def rows_of(folder: Path) -> pd.DataFrame:
    table = pd.read_csv(folder / "lengths.csv", keep_default_na=False)
    table["label"] = table["rescale"].str.cat(table["options"], sep=" ").str.strip()
    return table.set_index(["label", "test_len"])


@pytest.fixture(scope="module")
def measured(
    copier: runs.Run, evaluate: Callable[..., Path], sweep: Callable[..., Any]
) -> pd.DataFrame:
    sizes = {"lengths": [64, 128, 256, 512], "blocks": 2}
    rules = [sweep(**sizes), *(sweep("window", {"sinks": n}, **sizes) for n in (0, 4))]
    return rows_of(evaluate(copier, *rules))


def test_who_copies_from_far_away_uses_what_lies_there(measured: pd.DataFrame) -> None:
    own = measured.loc["none"]
    assert own["verdict"].tolist() == ["", "uses", "uses", "uses"]
    assert (own["stamp"] == "").all() and (own["n_docs"] >= 20).all()
    gains = own["gain_b_lo"].astype(float)
    assert (gains[1:] > 0.05).all() and gains[256] > gains[128]


def test_who_sees_no_more_than_the_last_keys_does_not(measured: pd.DataFrame) -> None:
    control = measured.drop("none", level="label")
    assert len(control) == 8
    past = control[control.index.get_level_values("test_len") > L]
    assert "holds" in set(past["verdict"]) <= {"holds", "undecided"}
    assert (past["gain_b_hi"].astype(float) < 0.2).all()  # the copier gains several times b


def test_who_has_learnt_nothing_has_no_verdict(
    begun: runs.Run, evaluate: Callable[..., Path]
) -> None:
    table = rows_of(evaluate(begun, lengths=[64, 256], blocks=1))
    assert set(table["verdict"]) == {""} and (table["stamp"] == "demo: below n-gram").all()


@pytest.mark.slow
def test_trained_enough_it_uses_and_trained_too_little_it_has_no_verdict(
    posbench: Callable[..., Any], evaluate: Callable[..., Path], sweep: Callable[..., Any]
) -> None:
    data = ["data=echo", "data.documents=800", "data.size=1100", "data.words=256"]
    data += ["data.near=4", "data.far=256", "data.share=0.8"]
    loop = ["train.seq_len=64", "train.batch_size=32", "train.threads=1", "train.device=cpu"]
    loop += ["model.n_layers=2", "model.hidden=32", "train.compile=false", "optimizer=muon"]
    found = []
    for steps in (30, 500):
        done = posbench("train", *data, *LEARNS, *loop, f"train.steps={steps}")
        assert done.code == 0, done.err
        found.append(runs.Run.open(Path(done.out.split()[-1])))
    sizes = {"lengths": [64, 128, 256], "blocks": 8}
    little, enough = (
        rows_of(evaluate(run, sweep(**sizes), sweep("window", {}, **sizes))) for run in found
    )
    assert set(little["verdict"]) == {""} and (little["stamp"] == "demo: below n-gram").all()
    assert enough.loc["none"]["verdict"].tolist() == ["", "uses", "uses"]
    assert "uses" not in set(enough.loc["window"]["verdict"])
