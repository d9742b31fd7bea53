"""aiperf: a profile with synthetic data, on the API that the harness names."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from common import MODEL, ROOT, TASK, feature, main

reports = []


def report():
    """The profile's report; it runs once."""
    if not reports:
        tokenizer = Path("tokenizer")
        tokenizer.mkdir()
        for name in ("tokenizer.json", "tokenizer_config.json"):  # a config.json beside them would name a model
            shutil.copy(Path(TASK["tokenizer"]) / name, tokenizer)
        extra = () if os.environ["DOVETAIL_API"] in ("messages", "responses") else ("--extra-inputs", "ignore_eos:true")
        command = [
            str(Path(sys.executable).with_name("aiperf")),
            "profile",
            *("--model-names", MODEL, "--url", ROOT, "--endpoint-type", os.environ["DOVETAIL_API"], "--streaming"),
            *("--tokenizer", str(tokenizer.absolute()), "--use-server-token-count", *extra),
            *("--request-count", str(TASK["requests"]), "--concurrency", "2", "--isl", "20", "--osl", "12"),
            *("--artifact-dir", "profile", "--ui", "none"),
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError((done.stderr or done.stdout).strip()[-400:])
        [found] = Path("profile").rglob("profile_export_aiperf.json")
        reports.append(json.loads(found.read_text()))
    return reports[0]


@feature
def benchmarked():
    failed = report().get("error_request_count") or {"avg": 0}
    return [int(report()["request_count"]["avg"]), int(failed["avg"])]


@feature
def counted():
    total = report().get("total_usage_completion_tokens") or report()["total_output_tokens"]
    return int(total["avg"])


main()
