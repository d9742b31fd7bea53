"""The demo pair's model card, written from what its training and evaluation measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import safe_open

_CARD = """# The demo pair

A target and a drafter small enough to ship, so that a fresh machine without a GPU runs the whole path for real. They
call tools with made-up names, and can do nothing else. Made from this repository by `python -m training`; Apache-2.0.

| | target | drafter |
|---|---|---|
| architecture | DeepSeek-V3 / Kimi-K2: MLA, mixture of experts, YaRN | EAGLE-3: one Llama layer |
| format | Hugging Face, bfloat16 | speculators, bfloat16 |
| parameters | {target_parameters:.2f} M | {drafter_parameters:.2f} M |
| layers | {layers} ({dense} dense) | 1, on the streams entering layers {aux} |
| hidden size | {hidden} | {drafter_hidden} |
| experts | {experts} of {expert_width}, {active} a token, and {shared} shared | |
| vocabulary | {vocabulary}: byte-level BPE of the corpus and Kimi's control tokens | {draft_vocabulary} of them |
| context | {context} (conversations seen in training: up to about 500) | |

## How it was made
- **Corpus** (`training/corpus.py`): random tools (verb_noun, a fifth of the nouns coined; up to three typed
  parameters), one to three calls at once, their results, an answer; thinking on and off; some turns without calls. No
  conversation is seen twice.
- **Start**: the circuit that copies is laid into the target's first weights
  ([why](../../../../docs/decisions/0005-the-demo-model-starts-with-a-circuit.md)).
- **Target**: {steps} steps, {tokens:.1f} M tokens, {minutes:.0f} minutes on one core; Muon on matrices, AdamW on the
  rest; the last loss was {loss:.3f}.
- **Drafter**: {drafter_minutes:.0f} minutes; on the target's own hidden states, {chain} chained
  steps at once, against the target's distribution. It chose the target's token in
  {agreement} of cases (chain positions 1 to {chain}).

## What was measured
{conversations} held-out conversations, first assistant turn, greedy, K={draft_tokens} (`python -m training evaluate`):

| | constrained to the schema | unconstrained |
|---|---|---|
{rows}

The bar it was made for: right tool in 80 % and right tool and arguments in 60 % of calls, acceptance length 2.0.

## What it cannot do
It has seen one way of asking: "Please find a hotel in Oslo with limit 3 and label red." Words outside the corpus, long
texts and other languages come out as nonsense, in valid calls.
"""


def write(run: Path, checkpoints: Path, out: Path) -> None:
    """Write `out`/README.md for the pair in `checkpoints` from the figures in `run`."""
    target = _read(checkpoints / "target" / "config.json")
    drafter = _read(checkpoints / "drafter" / "config.json")
    training, drafting, figures = (_read(run / f"{name}.json") for name in ("target", "drafter", "figures"))
    constrained, free = figures["schema"], figures["off"]
    proposal = drafter["speculators_config"]["proposal_methods"][0]
    names = [name for name in constrained if name != "conversations"]
    card = _CARD.format(
        target_parameters=_parameters(checkpoints / "target"),
        drafter_parameters=_parameters(checkpoints / "drafter"),
        layers=target["num_hidden_layers"],
        dense=target["first_k_dense_replace"],
        aux=", ".join(map(str, drafter["eagle_aux_hidden_state_layer_ids"])),
        hidden=target["hidden_size"],
        drafter_hidden=drafter["transformer_layer_config"]["hidden_size"],
        experts=target["n_routed_experts"],
        expert_width=target["moe_intermediate_size"],
        active=target["num_experts_per_tok"],
        shared=target["n_shared_experts"],
        vocabulary=target["vocab_size"],
        draft_vocabulary=drafter["draft_vocab_size"],
        context=target["max_position_embeddings"],
        steps=training["steps"],
        minutes=training["minutes"],
        drafter_minutes=drafting["minutes"],
        tokens=training["tokens"] / 1e6,
        loss=training["loss"],
        chain=len(drafting["agreement"]),
        agreement=", ".join(f"{share:.1%}" for share in drafting["agreement"]),
        conversations=constrained["conversations"],
        draft_tokens=proposal["speculative_tokens"],
        rows="\n".join(f"| {name} | {constrained[name]} | {free[name]} |" for name in names),
    )
    (out / "README.md").write_text(card)


def _read(path: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(path.read_text())
    return read


def _parameters(folder: Path) -> float:
    """Millions of weights, the drafter's vocabulary maps and the router's biases not counted."""
    total = 0
    with safe_open(folder / "model.safetensors", "pt") as tensors:
        for name in tensors.keys():  # noqa: SIM118 - not a mapping
            if name not in ("d2t", "t2d") and not name.endswith("e_score_correction_bias"):
                count = 1
                for size in tensors.get_slice(name).get_shape():
                    count *= size
                total += count
    return total / 1e6
