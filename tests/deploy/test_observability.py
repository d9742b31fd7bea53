"""The chart's dashboard and the alerts of deploy/: a real Prometheus scrapes a loaded demo, and every query has a
result. Without Prometheus they are skipped: prometheus.sh brings one."""

from __future__ import annotations

import concurrent.futures
import json
import math
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from dovetail.gateway.limits.keys import Keyring
from dovetail.gateway.observe.request_report import APIS
from tests.demo_server import demo_server
from tests.gateway.named_keys import bearer, named

DEPLOY = Path(__file__).parents[2] / "deploy"
FOLDER = DEPLOY / "observability"
#: The only copy: helm reads nothing outside of the chart.
DASHBOARD = json.loads((DEPLOY / "chart" / "dashboards" / "dashboard.json").read_text())
RULES = [rule for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
PROMETHEUS = os.environ.get("DOVETAIL_PROMETHEUS") or shutil.which("prometheus")
with_prometheus = pytest.mark.skipif(PROMETHEUS is None, reason="no Prometheus: see prometheus.sh, CONTRIBUTING.md")
#: What Grafana puts into queries.
VARIABLES = {"$__rate_interval": "10m", "$instance": ".*", "$api": ".*"}
_COMPARISON = re.compile(r"\s*[<>]\s*[\d.]+\s*$")

PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
#: Every query of the dashboard by the title of its panel, and every alert's without its limit.
QUERIES = [
    *(
        (f"{panel['title']}: {target['legendFormat']}", target["expr"])
        for panel in PANELS
        for target in panel["targets"]
    ),
    *((rule["alert"], _COMPARISON.sub("", rule["expr"])) for rule in RULES),
]


class Prometheus:
    """A Prometheus with the configuration of deploy/, which scrapes one server every two seconds."""

    def __init__(self, server: str, folder: Path) -> None:
        config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "2s", "evaluation_interval": "2s"}
        config["rule_files"] = [str(FOLDER / name) for name in config["rule_files"]]
        config["scrape_configs"][0]["static_configs"][0]["targets"] = [server]
        self._file = folder / "prometheus.yml"
        self._file.write_text(yaml.safe_dump(config))
        self._folder = folder
        self._start()

    def _start(self) -> None:
        for _ in range(5):  # another program may take the port in between
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            self._url = f"http://127.0.0.1:{port}"
            with (self._folder / "log").open("a") as log:
                self._child = subprocess.Popen(
                    [
                        str(PROMETHEUS),
                        f"--config.file={self._file}",
                        f"--storage.tsdb.path={self._folder / 'data'}",
                        f"--web.listen-address=127.0.0.1:{port}",
                    ],
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                )
            if self._is_ready():
                return
            self.stop()
        raise AssertionError((self._folder / "log").read_text()[-4_000:])

    def _is_ready(self) -> bool:
        for _ in range(600):
            if self._child.poll() is not None:
                return False
            try:
                if httpx.get(f"{self._url}/-/ready", timeout=5).status_code == 200:
                    return True
            except httpx.HTTPError:
                pass
            time.sleep(0.1)
        return False

    def stop(self) -> None:
        self._child.kill()
        self._child.wait()

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series of an instant query that have a number."""
        answer = httpx.get(f"{self._url}/api/v1/query", params={"query": expression}, timeout=30).json()
        assert answer["status"] == "success", answer
        return [series for series in answer["data"]["result"] if not math.isnan(float(series["value"][1]))]

    def scrapes(self) -> float:
        """How often the server was scraped so far."""
        counts = self.query('sum(sum_over_time(up{job="dovetail"}[10m]))')
        return float(counts[0]["value"][1]) if counts else 0.0

    def wait_for_scrapes(self, more: int) -> None:
        before = self.scrapes()
        for _ in range(1_200):
            if self.scrapes() >= before + more:
                return
            time.sleep(0.1)
        raise AssertionError((self._folder / "log").read_text()[-4_000:])


def tool(name: str, city: dict[str, Any]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"city": city}, "required": ["city"]}
    return {"name": name, "description": "The weather in a city", "parameters": parameters}


def load(url: str) -> None:
    """One round of requests: every API, streamed and whole, valid and invalid calls, a repair, and refusals."""
    question = [{"role": "user", "content": "What is the weather in Paris?"}]
    calling = {"messages": question, "tool_choice": "required"}
    good, bad = tool("get_weather", {"type": "string"}), tool("get_weather", {"type": "integer"})
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("chat/completions", calling | {"tools": [{"type": "function", "function": good}]}),
        (
            "chat/completions",
            calling | {"tools": [{"type": "function", "function": bad}], "dovetail": {"strict": "off"}},
        ),
        ("chat/completions", {"messages": [{"role": "user", "content": None}, *question]}),
        ("chat/completions", {"messages": "none"}),
        ("responses", {"input": "hi", "store": False}),
        ("messages", {"messages": question}),
        ("completions", {"prompt": "Please get"}),
    ]
    with httpx.Client(base_url=f"{url}/v1", headers=bearer("many"), timeout=120) as client:

        def post(path: str, body: dict[str, Any], stream: bool) -> int:
            limit = "max_output_tokens" if path == "responses" else "max_tokens"
            sent = body | {"model": "demo", "temperature": 0, limit: 64, "stream": stream}
            return client.post(path, json=sent).status_code

        with concurrent.futures.ThreadPoolExecutor(4) as threads:
            sending = [threads.submit(post, *each, stream) for each in bodies for stream in (False, True)]
            statuses = [each.result() for each in sending]
    assert sorted(statuses) == [200] * 12 + [400] * 2
    for _ in range(2):
        last = httpx.post(f"{url}/tokenize", json={"model": "demo", "prompt": "hi"}, headers=bearer("few"))
    assert last.status_code == 429


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    keys = Keyring([named("many", requests_per_minute=100_000), named("few", requests_per_minute=1)])
    with demo_server(keys=keys) as url:
        it = Prometheus(url.removeprefix("http://"), tmp_path_factory.mktemp("prometheus"))
        try:
            it.wait_for_scrapes(1)
            # A series that begins with the load needs two scrapes to have a rate.
            for _ in range(3):
                load(url)
                it.wait_for_scrapes(1)
            yield it
        finally:
            it.stop()


@with_prometheus
@pytest.mark.slow
@pytest.mark.parametrize(("name", "expression"), QUERIES, ids=[name for name, _ in QUERIES])
def test_every_query_has_a_result(prometheus: Prometheus, name: str, expression: str) -> None:
    for variable, value in VARIABLES.items():
        expression = expression.replace(variable, value)
    assert prometheus.query(expression), f"no series: {expression}"


@with_prometheus
@pytest.mark.slow
def test_a_query_of_what_does_not_exist_has_none(prometheus: Prometheus) -> None:
    assert not prometheus.query("sum(rate(dovetail_no_such_metric_total[10m]))")
    assert not prometheus.query('sum(rate(dovetail_requests_total{outcome="no such"}[10m]))')


@with_prometheus
@pytest.mark.slow
@pytest.mark.parametrize("metric", ["time_to_first_token", "inter_token", "queue", "request"])
def test_every_api_has_its_own_latencies(prometheus: Prometheus, metric: str) -> None:
    series = prometheus.query(
        f"histogram_quantile(0.95, sum by (le, api) (rate(dovetail_{metric}_seconds_bucket[10m])))"
    )
    assert {each["metric"]["api"] for each in series} == set(APIS)


@with_prometheus
@pytest.mark.slow
def test_prometheus_reads_the_alerts(prometheus: Prometheus) -> None:
    promtool = Path(str(PROMETHEUS)).with_name("promtool")
    subprocess.run([promtool, "check", "config", FOLDER / "prometheus.yml"], check=True, capture_output=True)
    assert prometheus.query('up{job="dovetail"} == 1')
    assert not prometheus.query('ALERTS{alertname="DovetailDown"}')


#: Series that make each alert fire, a value a minute, for two hours.
FIRING: dict[str, dict[str, str]] = {
    "DovetailDown": {'up{job="dovetail",instance="a"}': "0x120"},
    "DovetailNotReady": {'dovetail_ready{instance="a"}': "0x120"},
    "DovetailFailures": {
        'dovetail_requests_total{instance="a",api="chat",outcome="failed"}': "0+3x120",
        'dovetail_requests_total{instance="a",api="chat",outcome="stop"}': "0+97x120",
    },
    "DovetailRefusesForLackOfRoom": {
        'dovetail_requests_total{instance="a",api="chat",outcome="busy"}': "0+6x120",
        'dovetail_requests_total{instance="a",api="chat",outcome="stop"}': "0+94x120",
    },
    "DovetailQueueIsLong": {'dovetail_queued_requests{instance="a"}': "501x120"},
    "DovetailQueueIsSlow": {
        'dovetail_queue_seconds_bucket{instance="a",api="chat",le="30"}': "0x120",
        'dovetail_queue_seconds_bucket{instance="a",api="chat",le="60"}': "0+9x120",
        'dovetail_queue_seconds_bucket{instance="a",api="chat",le="+Inf"}': "0+9x120",
    },
    "DovetailFirstTokenIsSlow": {
        'dovetail_time_to_first_token_seconds_bucket{instance="a",api="chat",le="10"}': "0x120",
        'dovetail_time_to_first_token_seconds_bucket{instance="a",api="chat",le="30"}': "0+9x120",
        'dovetail_time_to_first_token_seconds_bucket{instance="a",api="chat",le="+Inf"}': "0+9x120",
    },
    "DovetailTokensAreSlow": {
        'dovetail_inter_token_seconds_bucket{instance="a",api="chat",le="0.5"}': "0x120",
        'dovetail_inter_token_seconds_bucket{instance="a",api="chat",le="1"}': "0+9x120",
        'dovetail_inter_token_seconds_bucket{instance="a",api="chat",le="+Inf"}': "0+9x120",
    },
    "DovetailDraftsAreRejected": {
        'dovetail_accepted_tokens_total{instance="a"}': "0+19x120",
        'dovetail_drafted_tokens_total{instance="a"}': "0+100x120",
    },
    "DovetailDrafterFails": {'dovetail_engine_drafting_failures_total{instance="a"}': "0+1x120"},
    "DovetailPreempts": {'dovetail_engine_preemptions_total{instance="a"}': "0+7x120"},
    "DovetailCallsAreInvalid": {
        'dovetail_calls_total{instance="a",fault="none"}': "0+94x120",
        'dovetail_calls_total{instance="a",fault="schema_mismatch"}': "0+6x120",
    },
}


def test_every_alert_has_series_that_make_it_fire() -> None:
    assert set(FIRING) == {rule["alert"] for rule in RULES}


def firing_alone(alert: str) -> dict[str, Any]:
    """A case for promtool: with the alert's series that alert fires, and no other does."""

    def expectation(expression: str, value: int) -> dict[str, Any]:
        return {"expr": expression, "eval_time": "110m", "exp_samples": [{"labels": "{}", "value": value}]}

    return {
        "name": alert,
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in FIRING[alert].items()],
        "promql_expr_test": [
            expectation(f'count(ALERTS{{alertstate="firing",alertname="{alert}"}})', 1),
            expectation(f'count(ALERTS{{alertstate="firing",alertname!="{alert}"}}) or vector(0)', 0),
        ],
    }


@with_prometheus
def test_each_alert_fires_on_what_it_is_about_and_on_nothing_else(tmp_path: Path) -> None:
    tests = {"rule_files": [str(FOLDER / "alerts.yml")], "evaluation_interval": "1m"}
    file = tmp_path / "test.yml"
    file.write_text(yaml.safe_dump(tests | {"tests": [firing_alone(alert) for alert in FIRING]}))
    promtool = Path(str(PROMETHEUS)).with_name("promtool")
    ended = subprocess.run([promtool, "test", "rules", file], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_every_limit_is_the_last_word_of_its_alert() -> None:
    for rule in RULES:
        assert _COMPARISON.search(rule["expr"]), rule["alert"]
        assert not re.search(r"\bor\b", rule["expr"])
        assert rule["annotations"]["summary"]


def test_the_panels_of_the_dashboard_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken and all(x < 24 for x, _ in cells), panel["title"]
        taken |= cells
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)


def test_every_panel_asks_the_chosen_data_source() -> None:
    for panel in PANELS:
        assert panel["title"] and panel["targets"]
        for target in panel["targets"]:
            assert target["datasource"] == panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            assert not re.search(r"\bor\b", target["expr"]), "a query with a default has a result whatever it asks"
            assert set(re.findall(r"\$\w+", target["expr"])) <= set(VARIABLES)
