#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Gets files out of the source package of a project from the package index that pip is configured for.

pip itself cannot download source packages without building their metadata, which some can do only beside the vendor's
libraries. Nothing of the package is run.

usage: fetch_source_package.py PROJECT VERSION SHA256 FOLDER MEMBER...
A member is a file, which lands in FOLDER by its last name, or a folder (ends with /), which keeps its path there. At the
end FOLDER/complete says that all is there.
"""
import hashlib
import html.parser
import io
import os
import pathlib
import subprocess
import sys
import tarfile
import urllib.parse
import urllib.request

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
        sys.exit(f"tools/fetch_source_package.py: more than {MOST_BYTES} bytes came")
    return data, response.url


class Links(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        if tag == "a":
            self.found.append(dict(attributes).get("href") or "")


def package(project, version, checksum):
    name = f"{project.replace('-', '_')}-{version}.tar.gz"
    try:
        page, base = get(f"{index_url().rstrip('/')}/{project}/")
        links = Links()
        links.feed(page.decode())
        wanted = [link for link in links.found if urllib.parse.urlsplit(link).path.rsplit("/", 1)[-1] == name]
        if not wanted:
            sys.exit(f"tools/fetch_source_package.py: the package index has no {name}")
        data, _ = get(urllib.parse.urljoin(base, wanted[0]).split("#")[0])
    except OSError as error:
        sys.exit(f"tools/fetch_source_package.py: cannot get {name}: {error}")
    found = hashlib.sha256(data).hexdigest()
    if found != checksum:
        sys.exit(f"tools/fetch_source_package.py: {name} has SHA-256 {found}, expected {checksum}")
    return data, name.removesuffix(".tar.gz")


def main():
    project, version, checksum, folder, *members = sys.argv[1:]
    target = pathlib.Path(folder)
    data, root = package(project, version, checksum)
    target.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in members:
            if not member.endswith("/"):
                (target / pathlib.PurePosixPath(member).name).write_bytes(archive.extractfile(f"{root}/{member}").read())
                continue
            for entry in archive.getmembers():
                if entry.isfile() and entry.name.startswith(f"{root}/{member}") and ".." not in entry.name:
                    path = target / entry.name.removeprefix(f"{root}/")
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(archive.extractfile(entry).read())
    (target / "complete").touch()


main()
