"""Writes goldens/qwen2_5_vl.npz with the reference implementation (needs the `parity` extra).

    python tests/models/make_goldens.py

The file holds the weights as int8 multiples of 1 / 512 under their Hugging Face keys, and for each case of `reference`
the logits of every row (from a left-padded batch) and its greedy continuation.
"""

import numpy as np
import reference
import torch_reference

GREEDY_TOKENS = 8


def main() -> None:
    weights = reference.random_weights(torch_reference.shapes(reference.config_json()))
    model = torch_reference.build(reference.config_json(), reference.floats(weights))
    arrays = {f"weights/{key}": value for key, value in weights.items()}
    for case in reference.CASES:
        rows, _ = reference.token_rows(case)
        inputs = torch_reference.inputs(case, side="left")
        logits = torch_reference.logits(model, inputs)
        greedy = torch_reference.greedy(model, inputs, tokens=GREEDY_TOKENS)
        for i, row in enumerate(rows):
            arrays[f"{case}/{i}/logits"] = logits[i, -len(row) :]
            arrays[f"{case}/{i}/greedy"] = greedy[i]
    reference.GOLDEN.parent.mkdir(exist_ok=True)
    np.savez_compressed(reference.GOLDEN, **arrays)
    print(f"{reference.GOLDEN.name}: {reference.GOLDEN.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
