#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Gets vLLM-Ascend's own proxy scripts for tests/e2e/test_guest_proxies.py, unmodified, into .cache/guest_proxies/<version>/
# (ignored by git), and a virtual environment with the packages that they import into .cache/guest_proxies/venv.
# Does nothing where they are already there. pip cannot download these source packages (it builds their metadata, which
# needs the vendor's libraries), so the package index that pip is configured for is read here, for that one package.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
target=$root/.cache/guest_proxies
mkdir -p "$target"

# Version and SHA-256 of the source package.
fetch() {
  version=$1
  checksum=$2
  if [ -f "$target/$version/complete" ]; then
    echo "guest proxies $version: already in .cache/guest_proxies/$version"
    return
  fi
  echo "guest proxies $version: getting the source package from the package index"
  python3 - "$target/$version" "$version" "$checksum" <<'PYTHON'
import hashlib, html.parser, io, os, pathlib, subprocess, sys, tarfile, urllib.parse, urllib.request

target, version, checksum = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
MOST_BYTES = 64 << 20


def index_url():
    if os.environ.get("PIP_INDEX_URL"):
        return os.environ["PIP_INDEX_URL"]
    for key in ("global.index-url", "install.index-url", "download.index-url"):
        found = subprocess.run([sys.executable, "-m", "pip", "config", "get", key], capture_output=True, text=True)
        if found.returncode == 0 and found.stdout.strip():
            return found.stdout.strip()
    from pip._internal.models.index import PyPI
    return PyPI.simple_url


def get(url):
    parts = urllib.parse.urlsplit(url)
    request = urllib.request.Request(urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])),
                                     headers={"Accept": "text/html, application/octet-stream;q=0.9"})
    if parts.username:
        import base64
        pair = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
        request.add_header("Authorization", "Basic " + base64.b64encode(pair.encode()).decode())
    with urllib.request.urlopen(request, timeout=120) as response:
        data = response.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        sys.exit(f"tools/fetch_guest_proxies.sh: more than {MOST_BYTES} bytes came")
    return data, response.url


class Links(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        if tag == "a":
            self.found.append(dict(attributes).get("href") or "")


name = f"vllm_ascend-{version}.tar.gz"
try:
    page, base = get(index_url().rstrip("/") + "/vllm-ascend/")
    links = Links()
    links.feed(page.decode())
    wanted = [link for link in links.found if urllib.parse.urlsplit(link).path.rsplit("/", 1)[-1] == name]
    if not wanted:
        sys.exit(f"tools/fetch_guest_proxies.sh: the package index has no {name}")
    data, _ = get(urllib.parse.urljoin(base, wanted[0]).split("#")[0])
except OSError as error:
    sys.exit(f"tools/fetch_guest_proxies.sh: cannot get {name}: {error}")
found = hashlib.sha256(data).hexdigest()
if found != checksum:
    sys.exit(f"tools/fetch_guest_proxies.sh: {name} has SHA-256 {found}, expected {checksum}")
target.mkdir(parents=True, exist_ok=True)
for script in ("load_balance_proxy_server_example.py", "load_balance_proxy_layerwise_server_example.py"):
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        member = archive.extractfile(f"vllm_ascend-{version}/examples/disaggregated_prefill_v1/{script}")
        (target / script).write_bytes(member.read())
(target / "complete").touch()
PYTHON
  echo "guest proxies $version: now in .cache/guest_proxies/$version"
}

# The release that the specification describes as rc2, and the newest final release.
fetch 0.11.0rc2 e83ab9d0733fd17ed84eeea8ad69b4fc8c5f3393756131bc9588d5e0c746c429
fetch 0.23.0.post1 a3b9f4a5dd7aa50c37e03d1f35937c4ae5aeacc49b734cac74d59ce5757738e1

# fastapi below 0.124: the pin that the scripts themselves name.
packages="fastapi==0.123.10 uvicorn==0.38.0 httpx==0.28.1"
if [ "$(cat "$target/venv/complete" 2>/dev/null)" != "$packages" ]; then
  echo "guest proxies: installing $packages into .cache/guest_proxies/venv"
  python3 -m venv --clear "$target/venv"
  # shellcheck disable=SC2086
  "$target/venv/bin/python" -m pip install --quiet $packages
  echo "$packages" >"$target/venv/complete"
fi
