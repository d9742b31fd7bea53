"""lm-eval: a multiple-choice task by log probabilities (`local-completions`), and one of generated answers."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

from common import COUNT, MODEL, TASK, URL, feature, main

TASKS = Path("tasks").absolute()
TASKS.mkdir(exist_ok=True)


def declare(name, documents, **task):
    """Write a task and its documents."""
    data = TASKS / f"{name}-data.json"
    data.write_text("\n".join(map(json.dumps, documents)))
    task |= {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
    }
    (TASKS / f"{name}.yaml").write_text(json.dumps(task))  # JSON is YAML


@functools.cache
def results():
    """The results of both tasks. One run, because it takes long to start."""
    declare(
        "exam",
        TASK["exam"],
        output_type="multiple_choice",
        doc_to_text="Question: {{question}}\nAnswer:",
        doc_to_choice="choices",
        doc_to_target="answer",
        metric_list=[{"metric": "acc"}],
    )
    declare(
        "counting",
        [{"question": COUNT, "answer": TASK["count_answer"]}],
        output_type="generate_until",
        doc_to_text="{{question}}",
        doc_to_target="{{answer}}",
        generation_kwargs={"until": ["\n"], "max_gen_toks": 200},
        metric_list=[{"metric": "exact_match"}],
    )
    model = f"model={MODEL},base_url={URL}/completions,tokenizer_backend=huggingface,tokenizer={TASK['tokenizer']}"
    command = [
        str(Path(sys.executable).with_name("lm_eval")),
        *("run", "--model", "local-completions", "--model_args", f"{model},max_retries=1,num_concurrent=1"),
        *("--include_path", str(TASKS), "--tasks", "exam,counting", "--output_path", "results"),
    ]
    variables = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OPENAI_API_KEY": "any-key"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-400:])
    [found] = Path("results").rglob("results_*.json")
    return json.loads(found.read_text())["results"]


@feature
def scored():
    return results()["exam"]["acc,none"]


@feature
def generated():
    return results()["counting"]["exact_match,none"]


main()
