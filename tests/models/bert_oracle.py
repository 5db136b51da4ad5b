"""BERT's forward pass in NumPy (float64), from arrays named as Hugging Face names them; and a tiny one, as it is published.

After Vaswani et al., "Attention Is All You Need", 2017, sections 3.1 to 3.4, and Devlin et al., "BERT", 2018, section 3.
"""

import json
import math
import re

import numpy as np
from safetensors.numpy import save_file

CONFIG = {
    "model_type": "bert",
    "hidden_act": "gelu",
    "hidden_size": 8,
    "intermediate_size": 12,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 9,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "position_embedding_type": "absolute",
    "type_vocab_size": 2,
    "vocab_size": 11,
}
IDS = np.array([[2, 5, 7, 3, 9, 4, 3], [2, 10, 3, 0, 0, 0, 0]])
TYPES = np.array([[0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 0, 0]])
MASK = np.array([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0, 0]])

erf = np.vectorize(math.erf)


def gelu_erf(x):
    return x * 0.5 * (1 + erf(x / np.sqrt(2)))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def forward(arrays, heads, ids, types, mask, gelu):
    """Token ids, types and mask [batch, length] to (sequence [batch, length, hidden], pooled [batch, hidden])."""
    w = {name: np.asarray(array, np.float64) for name, array in arrays.items() if array.dtype.kind == "f"}

    def linear(name, x):
        return np.einsum("bti,oi->bto", x, w[f"{name}.weight"]) + w[f"{name}.bias"]

    def norm(name, x):
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12) * w[f"{name}.weight"] + w[f"{name}.bias"]

    embedded = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.token_type_embeddings.weight"][types]
    x = norm("embeddings.LayerNorm", embedded + w["embeddings.position_embeddings.weight"][: ids.shape[1]])
    width = x.shape[-1] // heads
    layer = 0
    while f"encoder.layer.{layer}.intermediate.dense.weight" in w:
        at = f"encoder.layer.{layer}"
        q, k, v = (linear(f"{at}.attention.self.{name}", x) for name in ("query", "key", "value"))
        context = np.zeros_like(x)
        for sequence in range(len(x)):
            seen = mask[sequence].astype(bool)
            for head in range(heads):
                of_head = slice(head * width, (head + 1) * width)
                scores = q[sequence, :, of_head] @ k[sequence, seen, of_head].T / np.sqrt(width)
                weights = np.exp(scores - scores.max(1, keepdims=True))
                context[sequence, :, of_head] = weights / weights.sum(1, keepdims=True) @ v[sequence, seen, of_head]
        x = norm(f"{at}.attention.output.LayerNorm", x + linear(f"{at}.attention.output.dense", context))
        inner = gelu(linear(f"{at}.intermediate.dense", x))
        x = norm(f"{at}.output.LayerNorm", x + linear(f"{at}.output.dense", inner))
        layer += 1
    pooled = np.tanh(x[:, 0] @ w["pooler.dense.weight"].T + w["pooler.dense.bias"]) if "pooler.dense.weight" in w else None
    return x, pooled


def random_arrays(seed=1):
    """A tiny BERT of the shape in CONFIG, float32."""
    rng = np.random.default_rng(seed)
    shapes = {
        "embeddings.word_embeddings.weight": (11, 8),
        "embeddings.position_embeddings.weight": (9, 8),
        "embeddings.token_type_embeddings.weight": (2, 8),
        "embeddings.LayerNorm.weight": (8,),
        "embeddings.LayerNorm.bias": (8,),
        "pooler.dense.weight": (8, 8),
        "pooler.dense.bias": (8,),
    }
    for layer in ("encoder.layer.0", "encoder.layer.1"):
        for name in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
            shapes |= {f"{layer}.{name}.weight": (8, 8), f"{layer}.{name}.bias": (8,)}
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes |= {f"{layer}.{name}.weight": (8,), f"{layer}.{name}.bias": (8,)}
        shapes |= {f"{layer}.intermediate.dense.weight": (12, 8), f"{layer}.intermediate.dense.bias": (12,)}
        shapes |= {f"{layer}.output.dense.weight": (8, 12), f"{layer}.output.dense.bias": (8,)}
    return {name: rng.normal(0, 0.7, shape).astype(np.float32) for name, shape in shapes.items()}


def folder_of(path, arrays, **changes):
    """A folder as Hugging Face has it; a change to None takes a key out of the configuration."""
    path.mkdir(parents=True)
    config = {key: value for key, value in {**CONFIG, **changes}.items() if value is not None}
    (path / "config.json").write_text(json.dumps(config))
    save_file(arrays, path / "model.safetensors")
    return path


def google_variables(arrays):
    """The arrays as google-research/bert names and lays them."""
    variables = {}
    for name, array in arrays.items():
        if name.endswith("dense.weight") or ".self." in name and name.endswith(".weight"):
            name, array = name.replace(".weight", ".kernel"), array.T
        name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        name = name.replace("_embeddings.weight", "_embeddings")
        variables["bert/" + re.sub(r"layer\.(\d)", r"layer_\1", name).replace(".", "/")] = np.ascontiguousarray(array)
    return variables


def checkpoint_of(path, variables, **changes):
    """A folder as google-research/bert publishes it."""
    import tensorflow as tf

    path.mkdir(parents=True)
    known = {
        key: value for key, value in CONFIG.items() if key not in ("model_type", "layer_norm_eps", "position_embedding_type")
    }
    (path / "bert_config.json").write_text(json.dumps({**known, **changes}))
    tf.raw_ops.SaveV2(
        prefix=str(path / "bert_model.ckpt"),
        tensor_names=list(variables),
        shape_and_slices=[""] * len(variables),
        tensors=list(variables.values()),
    )
    return path
