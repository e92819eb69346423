"""Serves ``/metrics``, ``/healthz`` and ``/readyz`` over HTTP from the result of the last look.

It answers at once and uses bounded resources: a limited number of connections, each for some seconds, no
request bodies, no other paths. There is no login. Whoever can connect sees the names of topics and
applications, so it listens on the loopback interface by default.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import accumulate
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector, CollectorRegistry

from escrowmq.cluster.exporter.exporter import Watching
from escrowmq.cluster.exporter.metric import Kind, Metric
from escrowmq.cluster.exporter.series import Key, Value
from escrowmq.cluster.exporter.table import METRICS
from escrowmq.replication.calling.metrics_report import HistogramReport
from escrowmq.replication.errors import ConfigError

# ------------------------------------------------------------------------------------------------------------
# Encodes series with Prometheus' own library, in its text format or, if requested, OpenMetrics.


class _Once(Collector):
    """A collector of the given series, in the order of the table."""

    def __init__(self, series: Mapping[Key, Value]) -> None:
        self._by_metric: dict[str, list[tuple[tuple[str, ...], Value]]] = {}
        for (name, labels), value in series.items():
            self._by_metric.setdefault(name, []).append((labels, value))

    def collect(self) -> Iterator[Family]:
        for metric in METRICS:
            samples = self._by_metric.get(metric.name)
            if samples:
                yield _family(metric, samples)


def _family(metric: Metric, samples: list[tuple[tuple[str, ...], Value]]) -> Family:
    if metric.kind is Kind.histogram:
        histogram = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        for labels, value in samples:
            assert isinstance(value, HistogramReport), metric.name
            bounds = [*map(str, map(float, value.bounds)), "+Inf"]
            buckets = list(zip(bounds, map(float, accumulate(value.counts)), strict=True))
            histogram.add_metric(labels, buckets, value.total)
        return histogram
    counts = metric.kind is Kind.counter
    made = (CounterMetricFamily if counts else GaugeMetricFamily)(
        metric.name, metric.help, labels=metric.labels
    )
    for labels, value in samples:
        assert not isinstance(value, HistogramReport), metric.name
        made.add_metric(labels, value)
    return made


def text(series: Mapping[Key, Value], accept: str = "") -> tuple[bytes, str]:
    """The page and its content type. ``accept``: the request's Accept header."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Once(series))
    encode, kind = choose_encoder(accept)
    return encode(registry), kind


log = logging.getLogger(__name__)

PORT = 9644
#: A client that sends or receives nothing for this long is disconnected.
TIMEOUT_S = 5.0
#: Prometheus needs one. Connections beyond this number are closed at once.
CONNECTIONS_MAX = 16
PLAIN = "text/plain; charset=utf-8"

Answer = tuple[HTTPStatus, bytes, str]


def answer(watching: Watching, path: str, accept: str) -> Answer:
    """The answer to a GET of ``path``: status, body, content type."""
    match path.partition("?")[0]:
        case "/metrics":
            return HTTPStatus.OK, *text(watching.series(), accept)
        case "/healthz":
            trouble = watching.trouble()
            return _plain([] if trouble is None else [trouble])
        case "/readyz":
            return _plain(watching.not_ready())
        case "/":
            return HTTPStatus.OK, b"/metrics\n/healthz\n/readyz\n", PLAIN
        case _:
            return HTTPStatus.NOT_FOUND, b"not found; try /metrics, /healthz or /readyz\n", PLAIN


def _plain(problems: list[str]) -> Answer:
    status = HTTPStatus.SERVICE_UNAVAILABLE if problems else HTTPStatus.OK
    return status, "".join(f"{line}\n" for line in problems or ["ok"]).encode(), PLAIN


class _Handler(BaseHTTPRequestHandler):
    timeout = TIMEOUT_S
    server_version, sys_version = "escrowmq", ""

    def do_GET(self) -> None:
        assert isinstance(self.server, Server)
        status, body, kind = answer(self.server.watching, self.path, self.headers.get("Accept", ""))
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)


class Server(ThreadingHTTPServer):
    """Serves the last look, which ``watching`` keeps, from ``start`` to ``close``."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, watching: Watching, host: str, port: int) -> None:
        """Raises ConfigError if the address cannot be bound. ``port`` 0: any free port."""
        self.watching = watching
        self._slots = threading.BoundedSemaphore(CONNECTIONS_MAX)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
        self._thread = threading.Thread(target=self.serve_forever, name="exporter-http", daemon=True)

    def start(self) -> None:
        """Start serving."""
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        if self._thread.is_alive():
            self.shutdown()
        self.server_close()

    @property
    def address(self) -> str:
        """host:port."""
        host, port = self.server_address[:2]
        return f"{host!s}:{port}"

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._slots.acquire(blocking=False):
            log.warning("%d clients are connected; refusing another one", CONNECTIONS_MAX)
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a client disconnected", exc_info=True)


def parse_listen(given: str) -> tuple[str, int]:
    """``host:port``, ``:port`` or ``[::1]:port``. Raises ConfigError."""
    host, colon, port = given.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65_535:
        raise ConfigError(f"--listen must be host:port, such as 127.0.0.1:{PORT}, not {given!r}")
    return host.strip("[]") or "127.0.0.1", int(port)
