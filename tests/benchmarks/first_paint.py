"""How soon a page is painted after it is opened, in headless Chromium. Everything stays on the loopback interface."""

from __future__ import annotations

import http.server
import json
import queue
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--window-size=1280,800"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
TIMEOUT_S = 120.0
# The page stands in a frame as large as the window, from which its own times are read when all is quiet.
FRAME = """<!doctype html><style>html, body, iframe { margin: 0; border: 0; width: 100%; height: 100% }</style>
<iframe src="report.html"></iframe><script>
const frame = document.querySelector("iframe");
frame.onload = () => setTimeout(() => {
  const paints = frame.contentWindow.performance.getEntriesByType("paint");
  fetch("paints", { method: "POST", body: JSON.stringify(paints) });
}, 3000);
</script>"""


def first_paint_s(report: Path) -> float:
    """Return the seconds from opening a report to its first contentful paint.

    Raises:
        RuntimeError: there is no Chromium, or it painted nothing.
    """
    if CHROMIUM is None:
        raise RuntimeError("no Chromium on this machine (Debian: apt-get install chromium)")
    said: queue.Queue[bytes] = queue.Queue()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(report, said)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        paints = json.loads(_visit(f"http://127.0.0.1:{server.server_port}/", said))
        server.shutdown()
    found = [paint["startTime"] for paint in paints if paint["name"] == "first-contentful-paint"]
    if not found:
        raise RuntimeError(f"Chromium painted nothing of {report}")
    return float(found[0]) / 1000


def _visit(address: str, said: queue.Queue[bytes]) -> bytes:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={profile}", "--remote-debugging-port=0", address]
        browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            return said.get(timeout=TIMEOUT_S)
        finally:
            browser.terminate()
            browser.wait()


def _handler(report: Path, said: queue.Queue[bytes]) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = {"/": FRAME.encode, "/report.html": report.read_bytes}.get(self.path)
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(found() if found else b"")

        def do_POST(self) -> None:
            said.put(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    return Handler
