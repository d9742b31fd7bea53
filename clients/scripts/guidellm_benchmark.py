"""guidellm: a benchmark with synthetic data, on the API that the harness names."""

import json
import os
import subprocess
import sys
from pathlib import Path

from common import MODEL, ROOT, TASK, feature, main

PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions", "responses": "/v1/responses"}
reports = []


def report():
    """The benchmark's report; it runs once."""
    if not reports:
        path = PATHS[os.environ["DOVETAIL_API"]]
        command = [
            str(Path(sys.executable).with_name("guidellm")),
            "run",
            *("--backend", f"kind=openai_http,target={ROOT},model={MODEL},request_format={path}"),
            *("--profile", "kind=concurrent,streams=2"),
            *("--constraint", f"kind=max_requests,count={TASK['requests']}"),
            *("--tokenizer", f"kind=hf_auto,model={TASK['tokenizer']}"),
            *("--data", "kind=synthetic_text,prompt_tokens=20,output_tokens=12"),
            *("--output", "kind=json,path=report.json"),
            "--disable-progress",
        ]
        done = subprocess.run(command, env={**os.environ, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr.strip()[-400:])
        reports.append(json.loads(Path("report.json").read_text())["benchmarks"][0])
    return reports[0]


@feature
def benchmarked():
    """It says that it is complete even where every request failed, so its report is looked into."""
    totals = report()["metrics"]["request_totals"]
    return [totals["successful"], totals["errored"] + totals["incomplete"]]


@feature
def counted():
    return sum(request["output_metrics"]["total_tokens"] for request in report()["requests"]["successful"])


main()
