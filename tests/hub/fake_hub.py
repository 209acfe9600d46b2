"""A server that speaks the API of the Hugging Face hub as far as `kvasir pull` uses it, and injects faults.

The hub listens on 127.0.0.1 and redirects contents to a second server on another port, the "CDN". Both note each
request. A test sets the attributes of Hub before a pull.
"""
import hashlib
import http.server
import json
import socket
import struct
import threading
import time
import urllib.parse

COMMIT = 'a' * 40


class Hub:
    """One repository, its files and the faults of both servers."""

    def __init__(self, repo='user/repo'):
        self.repo = repo
        self.commit = COMMIT
        self.files = {}          # path -> content
        self.entries = []        # further entries of the listing, as they are sent
        self.plain = set()       # paths outside LFS
        self.served = {}         # path -> content that is sent instead
        self.listed_size = {}    # path -> size that is listed instead
        self.page = 1000         # entries of a page of the listing
        self.token = None        # that is needed
        self.hub_fault = None    # function(handler, path) -> whether it answered
        self.cdn_fault = None
        self.hide_links = False  # no X-Linked-* headers
        self.chunk = None        # bytes after which the CDN sleeps, and for how long: (bytes, seconds)
        self.requests = []       # (server, method, path, headers)
        self.times = []          # of each, monotonic
        self.lock = threading.Lock()

    def sha256(self, path):
        return hashlib.sha256(self.files[path]).hexdigest()

    def git_sha1(self, path):
        content = self.files[path]
        return hashlib.sha1(b'blob %d\0' % len(content) + content).hexdigest()

    def oid(self, path):
        return self.git_sha1(path) if path in self.plain else self.sha256(path)

    def entry(self, path):
        size = self.listed_size.get(path, len(self.files[path]))
        entry = {'type': 'file', 'path': path, 'size': size, 'oid': self.git_sha1(path)}
        if path not in self.plain:
            entry['lfs'] = {'oid': self.sha256(path), 'size': size, 'pointerSize': 130}
        return entry

    def of(self, server, kind=''):
        return [request for request in self.requests if request[0] == server and kind in request[2]]

    def __enter__(self):
        self.cdn = _start(self, _Cdn)
        self.server = _start(self, _HubHandler)
        self.endpoint = f'http://127.0.0.1:{self.server.server_port}'
        # Another host too, as far as tokens go.
        self.cdn_address = f'http://localhost:{self.cdn.server_port}'
        return self

    def __exit__(self, *_):
        for server in (self.server, self.cdn):
            server.shutdown()
            server.server_close()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def handle_error(self, request, client_address):
        pass  # clients are killed


def _start(hub, handler):
    server = _Server(('127.0.0.1', 0), type('Handler', (handler,), {'hub': hub}))
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    return server


class _Base(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    name = ''

    def log_message(self, *_):
        pass

    def note(self):
        with self.hub.lock:
            self.hub.requests.append((self.name, self.command, self.path, dict(self.headers)))
            self.hub.times.append(time.monotonic())

    def answer(self, status, body=b'', headers=()):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        if self.command != 'HEAD':
            self.wfile.write(body)

    def send_json(self, value, headers=()):
        self.answer(200, json.dumps(value).encode(), [('Content-Type', 'application/json'), *headers])

    def cut(self):
        """Ends the connection with a reset, in the middle of whatever was sent."""
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
        self.connection.close()
        self.close_connection = True


class _HubHandler(_Base):
    name = 'hub'

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        self.note()
        hub = self.hub
        url = urllib.parse.urlsplit(self.path)
        if hub.hub_fault and hub.hub_fault(self, self.path):
            return
        if hub.token and self.headers.get('Authorization') != f'Bearer {hub.token}':
            self.answer(401, b'{"error":"x"}', [('X-Error-Message', 'Access to model user/repo is restricted')])
            return
        api = f'/api/models/{hub.repo}'
        if url.path == f'{api}/refs':
            self.send_json({'branches': [{'name': 'main', 'ref': 'refs/heads/main', 'targetCommit': hub.commit}]})
        elif url.path in (f'{api}/revision/main', f'{api}/revision/{hub.commit}'):
            self.send_json({'id': hub.repo, 'sha': hub.commit})
        elif url.path == f'{api}/tree/{hub.commit}':
            entries = [hub.entry(path) for path in hub.files] + hub.entries
            first = int(urllib.parse.parse_qs(url.query).get('cursor', ['0'])[0])
            last = first + hub.page
            links = []
            if last < len(entries):
                links = [('Link', f'<{hub.endpoint}{api}/tree/{hub.commit}?recursive=true&cursor={last}>; rel="next"')]
            self.send_json(entries[first:last], links)
        elif url.path.startswith((f'/{hub.repo}/resolve/{hub.commit}/', f'/{hub.repo}/resolve/main/')):
            path = urllib.parse.unquote(url.path.split('/', 5)[5])
            if path not in hub.files:
                self.answer(404, b'', [('X-Error-Message', 'Entry not found')])
                return
            links = [('X-Repo-Commit', hub.commit), ('ETag', f'"{hub.git_sha1(path)}"')]
            if path in hub.plain:
                _send_content(self, hub.files[path], hub.oid(path), links)
                return
            if not hub.hide_links:
                links += [('X-Linked-Etag', f'"{hub.sha256(path)}"'), ('X-Linked-Size', str(len(hub.files[path])))]
            location = f'{hub.cdn_address}/content/{urllib.parse.quote(path)}?signature=1'
            self.answer(302, b'Found', [*links, ('Location', location)])
        else:
            self.answer(404, b'{"error":"Repository not found"}', [('X-Error-Message', 'Repository not found')])


class _Cdn(_Base):
    name = 'cdn'

    def do_GET(self):
        self.note()
        hub = self.hub
        if hub.cdn_fault and hub.cdn_fault(self, self.path):
            return
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)[len('/content/'):]
        content = hub.served.get(path, hub.files.get(path))
        if content is None:
            self.answer(404)
            return
        _send_content(self, content, hashlib.md5(content).hexdigest(), [])


def wanted(handler, content):
    """The first byte that the request asks for."""
    given = handler.headers.get('Range')
    if not given:
        return 0
    condition = handler.headers.get('If-Range')
    if condition and condition != handler.etag:
        return 0
    return int(given[len('bytes='):].rstrip('-'))


def _send_content(handler, content, etag, headers):
    handler.etag = f'"{etag}"'
    first = wanted(handler, content)
    headers = [*headers, ('Accept-Ranges', 'bytes')]
    if not any(name == 'ETag' for name, _ in headers):
        headers.append(('ETag', handler.etag))
    if first >= len(content) and first > 0:
        handler.answer(416, b'', [('Content-Range', f'bytes */{len(content)}')])
        return
    if first:
        headers.append(('Content-Range', f'bytes {first}-{len(content) - 1}/{len(content)}'))
    handler.send_response(206 if first else 200)
    for name, value in headers:
        handler.send_header(name, value)
    handler.send_header('Content-Length', str(len(content) - first))
    handler.end_headers()
    if handler.command == 'HEAD':
        return
    if not handler.hub.chunk:
        handler.wfile.write(content[first:])
        return
    size, seconds = handler.hub.chunk
    for begin in range(first, len(content), size):
        handler.wfile.write(content[begin:begin + size])
        handler.wfile.flush()
        time.sleep(seconds)
