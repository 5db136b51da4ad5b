"""What is no BERT that the encoder of tf-models-official can be is refused, with the reason."""

import shutil

import pytest

from models import bert_sources
from tests.models.bert_oracle import checkpoint_of, folder_of, google_variables, random_arrays

pytestmark = pytest.mark.one_keras


def shape(source):
    with bert_sources.opened(source) as opened:
        return bert_sources.shape(opened)


@pytest.fixture
def published(tmp_path):
    return folder_of(tmp_path / "published", random_arrays())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hidden_size": None}, "hidden_size=None: expected whole numbers"),
        ({"vocab_size": "11", "num_hidden_layers": 0}, "num_hidden_layers=0, vocab_size='11': expected"),
        ({"hidden_act": None}, "hidden_act=None: expected 'gelu' or 'gelu_new'"),
        ({"hidden_act": "relu"}, "hidden_act='relu'"),
        ({"layer_norm_eps": 1e-5}, "layer_norm_eps=1e-05: .* only 1e-12"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key': .* only 'absolute'"),
        ({"model_type": "roberta"}, "model_type='roberta': .* only 'bert'"),
        ({"is_decoder": True}, "is_decoder=True"),
        ({"type_vocab_size": 16}, "type_vocab_size=16"),
        ({"num_attention_heads": 3}, "hidden_size=8, .* num_attention_heads=3"),
    ],
)
def test_a_configuration_that_the_encoder_cannot_be_is_refused(tmp_path, changes, reason):
    with pytest.raises(ValueError, match=f"config.json has {reason}"):
        shape(folder_of(tmp_path / "model", random_arrays(), **changes))


def test_only_its_own_gelu_in_a_checkpoint_of_berts_code(tmp_path):
    folder = checkpoint_of(tmp_path / "model", google_variables(random_arrays()), hidden_act="relu")
    with pytest.raises(ValueError, match="bert_config.json has hidden_act='relu': expected 'gelu'$"):
        shape(folder)


def refused(source, reason):
    with pytest.raises(ValueError, match=reason):
        shape(source)


def test_what_holds_no_weights_or_two_is_refused(tmp_path, published):
    refused(tmp_path / "nothing", "nothing holds no such weights: expected a folder with config.json")
    refused(published / "model.safetensors", "holds no such weights: expected a folder")
    (published / "bert_model.ckpt.index").write_bytes(b"")
    refused(published, "holds bert_model.ckpt.index and model.safetensors: expected")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_broken_file_of_a_folder_is_named(published, name):
    (published / name).write_bytes(b"broken")
    refused(published, f"{name} is no ")


def test_a_broken_checkpoint_is_named(tmp_path):
    folder = checkpoint_of(tmp_path / "model", google_variables(random_arrays()))
    (folder / "bert_model.ckpt.index").write_bytes(b"broken")
    refused(folder, "bert_model.ckpt.index is of no TensorFlow checkpoint")


def test_a_damaged_archive_is_refused(tmp_path, published):
    archive = tmp_path / "model.zip"
    shutil.make_archive(str(archive.with_suffix("")), "zip", published)
    content = bytearray(archive.read_bytes())
    content[200:260] = b"\xff" * 60
    archive.write_bytes(content)
    refused(archive, "model.zip cannot be unpacked")
    archive.write_bytes(b"PK\x05\x06" + bytes(18))
    refused(archive, "model.zip holds no such weights")
