"""Law 14: the strongest layer that has a setting decides it, and is named as its source."""

from hypothesis import given
from hypothesis import strategies as st

from dovetail.plan import Setting
from dovetail.plan.layers import Layer, overlay

VALUES = st.dictionaries(st.sampled_from("abcdef"), st.none() | st.integers(), max_size=6)
LAYERS = st.lists(VALUES, max_size=5).map(lambda stack: [Layer(f"layer {i}", v) for i, v in enumerate(stack)])


@given(LAYERS)
def test_the_first_layer_that_has_a_setting_decides_it(layers: list[Layer]) -> None:
    settings = overlay(layers)
    assert settings.keys() == {name for layer in layers for name in layer.values}
    for name, setting in settings.items():
        # The slow and obvious way: walk up from the weakest, each stronger layer overwriting.
        expected = None
        for source, values in reversed(layers):
            if name in values:
                expected = Setting(values[name], source)
        assert setting == expected


@given(LAYERS, VALUES)
def test_a_weaker_layer_only_fills_gaps(layers: list[Layer], weaker: dict[str, int | None]) -> None:
    before, after = overlay(layers), overlay([*layers, Layer("weaker", weaker)])
    assert before.items() <= after.items()
    assert all(after[name].source == "weaker" for name in after.keys() - before.keys())
