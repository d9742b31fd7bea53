"""Makes `src/dovetail/plan/recipes/vllm-recipes.json` of a checkout of vLLM's recipes: `python -m recipe_import`.

1. `checkout`: reads the models' files at the checkout's commit.
2. `arguments`: translates arguments of `vllm serve` into settings; what it cannot translate is listed.
3. `review`: what a person has checked: formats, names, published figures, and what is left out and why.
4. `build`: makes recipes of the three.
"""
