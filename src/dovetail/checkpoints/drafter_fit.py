"""Whether a drafter was made for a target: widths, vocabularies, layers, family."""

from __future__ import annotations

from dovetail.checkpoints.drafter import Drafter
from dovetail.checkpoints.methods import READS_TARGET
from dovetail.checkpoints.target import Target


def misfit(drafter: Drafter, target: Target) -> str | None:
    """The first reason why `drafter` does not fit `target`, naming what each side declares; None when it fits."""
    return (
        _width(drafter, target)
        or _vocabulary(drafter, target)
        or _layers(drafter, target)
        or _declared_target(drafter, target)
    )


def _width(drafter: Drafter, target: Target) -> str | None:
    """A method that reads hidden states needs the width that it was trained on."""
    width = drafter.target_hidden
    if drafter.method not in READS_TARGET or width in (None, target.hidden):
        return None
    return (
        f"it reads hidden states {width} wide (target_hidden_size, or else hidden_size), the target's hidden_size is "
        f"{target.hidden}"
    )


def _vocabulary(drafter: Drafter, target: Target) -> str | None:
    """Both need one vocabulary, since token ids are exchanged; drafts may come from a part of it.

    Draft models too: vLLM 0.33, config/speculative.py, verify_equal_vocab_size_if_draft_model.
    """
    if drafter.vocab not in (None, target.vocab):
        return f"its vocab_size is {drafter.vocab}, the target's vocab_size is {target.vocab}"
    for name, size in (("draft_vocab_size", drafter.draft_vocab), ("mask_token_id", drafter.mask_token)):
        # A mask token is an id, which is below the size of the vocabulary.
        if size is not None and size + (name == "mask_token_id") > target.vocab:
            return f"its {name} is {size}, the target's vocab_size is {target.vocab}"
    return None


def _layers(drafter: Drafter, target: Target) -> str | None:
    """The layers that it reads must exist: 0 to L, where the hidden state L leaves the last layer."""
    count = target.layers
    if drafter.target_layers not in (None, count):
        return f"it was made for a target of {drafter.target_layers} layers (num_target_layers), this one has {count}"
    if any(layer > count for layer in drafter.aux_layers or ()):
        return (
            f"it reads the hidden states that enter layers {list(drafter.aux_layers or ())}, the target has {count} "
            f"layers (0 to {count} can be read)"
        )
    return None


def _declared_target(drafter: Drafter, target: Target) -> str | None:
    """A drafter of a text model does not fit the multimodal model around it, which counts positions differently."""
    this = f"this one is {target.architecture} ({target.family}{', multimodal' if target.multimodal else ''})"
    family = drafter.target_type
    if family not in (None, target.family) and (target.multimodal or family != target.text_family):
        return f"it is for targets of model_type {family} (target_model_type), {this}"
    named = drafter.verifier_architectures
    if named and target.architecture not in named:
        alone = ", the text model alone" if target.multimodal and target.text_architecture in named else ""
        return f"it was made for {drafter.verifier or 'a target'} ({' or '.join(named)}{alone}), {this}"
    return None
