"""What transformers answers to prompts with pictures: greedy ids of a checkpoint that sees, as a program of its own.

It runs in the environment of vLLM, so that both prepare pictures by the same library. A line of its input is one
prompt with its expanded ids and its pictures, a line of its output the ids of the answer.
"""

from __future__ import annotations

import base64
import io
import json
import sys
from pathlib import Path
from typing import Any


class Oracle:
    def __init__(self, folder: Path, tokens: int) -> None:
        import torch
        from transformers import AutoImageProcessor, AutoModelForImageTextToText

        torch.set_num_threads(1)
        self._images = AutoImageProcessor.from_pretrained(folder)
        self._model: Any = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
        config = self._model.config
        self._place = getattr(config, "image_token_id", None) or config.image_token_index
        #: The field that tells the places of pictures from text. Without it, Gemma 3 sees a picture's tokens from left
        #: to right, as it does in vLLM on CPU, which has no attention in both directions.
        self._kinds = None if config.model_type == "gemma3" else "mm_token_type_ids"
        self._tokens = tokens

    def ids(self, prompt: list[int], pictures: list[str]) -> list[int]:
        """`pictures`: data: URLs."""
        import torch
        from PIL import Image

        files = [io.BytesIO(base64.b64decode(picture.partition(",")[2])) for picture in pictures]
        seen = self._images([Image.open(file).convert("RGB") for file in files], return_tensors="pt") if files else {}
        ids = torch.tensor([prompt])
        kinds = {self._kinds: (ids == self._place).int()} if self._kinds else {}
        seen = {name: value for name, value in seen.items() if name in ("pixel_values", "image_grid_thw")}
        with torch.inference_mode():
            answer = self._model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                **kinds,
                **seen,
                max_new_tokens=self._tokens,
                do_sample=False,
            )
        generated: list[int] = answer[0, len(prompt) :].tolist()
        return generated


if __name__ == "__main__":
    oracle = Oracle(Path(sys.argv[1]), int(sys.argv[2]))
    for line in sys.stdin:
        print(json.dumps(oracle.ids(**json.loads(line))), flush=True)
