"""What the checks of fetching models share: a hub and an empty home, faults, and the run of all tests of a module."""
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile
import time
import traceback

from fake_hub import COMMIT, Hub

PATIENCE = 120  # seconds; only what hangs takes so long
FILE = 'model.Q4_K_M.gguf'
KVASIR, SOURCE = (os.path.abspath(path) for path in sys.argv[1:3])
MODEL = pathlib.Path(SOURCE).read_bytes()


class Case:
    """A hub with one model, and an empty home to fetch it to."""

    def __init__(self, content=None):
        self.hub = Hub()
        self.content = content if content is not None else MODEL
        self.hub.files = {'README.md': b'# a model\n', FILE: self.content}
        self.environment = {}

    def __enter__(self):
        self.hub.__enter__()
        self.folder = tempfile.TemporaryDirectory(prefix='kvasir-pull-')
        self.home = pathlib.Path(self.folder.name)
        self.cache = self.home / '.cache/huggingface/hub'
        self.repo = self.cache / 'models--user--repo'
        return self

    def __exit__(self, *_):
        self.hub.__exit__()
        self.folder.cleanup()

    def start(self, *arguments, limit=None, **options):
        environment = {'HOME': str(self.home), 'HF_ENDPOINT': self.hub.endpoint, 'PATH': os.environ['PATH'],
                       'NO_PROXY': '*', **self.environment}
        before = (lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))) if limit else None
        return subprocess.Popen([KVASIR, *arguments], env=environment, stdin=subprocess.DEVNULL, preexec_fn=before,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.home, **options)

    def run(self, *arguments, **options):
        process = self.start(*arguments, **options)
        out, errors = process.communicate(timeout=PATIENCE)
        return process.returncode, out, errors

    def pull(self, name='hf:user/repo', *options, **more):
        """Quick tries, so that no test waits."""
        return self.run('pull', name, '--wait', '0.01', '--timeout', '60', *options, **more)

    def blob(self, path=FILE):
        return self.repo / 'blobs' / self.hub.oid(path)

    def partial(self, path=FILE):
        return pathlib.Path(f'{self.blob(path)}.incomplete')

    def expect_whole(self, result, path=FILE):
        """The pull printed the path of the right content, in the layout of the Hugging Face tools."""
        code, out, errors = result
        assert code == 0, errors
        snapshot = self.repo / 'snapshots' / COMMIT / path
        assert out == f'{snapshot}\n', out
        assert snapshot.read_bytes() == self.hub.files[path]
        assert snapshot.is_symlink() and snapshot.resolve() == self.blob(path).resolve()
        assert not self.partial(path).exists()
        assert (self.repo / 'refs/main').read_text() == COMMIT
        return errors

    def expect_line(self, result, line, code=1):
        """The pull failed with this line, a regular expression, as its last, and left no file under its name."""
        assert result[0] == code, result
        assert result[1] == '', result
        last = result[2].splitlines()[-1]
        assert re.fullmatch('kvasir: ' + line, last), f'{last!r} is not {line!r}'
        assert not (FILE in self.hub.files and self.blob().exists()) and not (self.repo / 'snapshots').exists()
        return result[2]

    def expect_removed(self, name, line, *options):
        result = self.run('models', 'remove', name, *options)
        assert result == (0, line, ''), result

    def site(self):
        return re.escape(self.hub.endpoint)

    def cdn(self):
        return re.escape(self.hub.cdn_address)


def once(fault, times=1):
    """A fault of the first requests only."""
    left = [times]

    def function(handler, path):
        if left[0] == 0:
            return False
        left[0] -= 1
        return fault(handler, path)
    return function


def of_contents(fault):
    """A fault of the requests for contents only."""
    return lambda handler, path: '/resolve/' in path and fault(handler, path)


def answers(status, headers=()):
    def fault(handler, _):
        handler.answer(status, b'no', headers)
        return True
    return fault


def cuts_after(count, path=FILE):
    """Sends so many bytes of the rest of a file, and resets the connection."""
    def fault(handler, _):
        content = handler.hub.files[path]
        given = handler.headers.get('Range')
        first = int(given[6:-1]) if given else 0
        handler.send_response(206 if first else 200)
        handler.send_header('Content-Length', str(len(content) - first))
        handler.send_header('ETag', '"same"')
        if first:
            handler.send_header('Content-Range', f'bytes {first}-{len(content) - 1}/{len(content)}')
        handler.end_headers()
        handler.wfile.write(content[first:first + count])
        handler.wfile.flush()
        time.sleep(0.05)  # a reset drops what the client has not read
        handler.cut()
        return True
    return fault


def main(module):
    """Runs the functions test_* of a module, or those that the command line names; returns the exit status."""
    wanted = sys.argv[3:]
    failed = 0
    for name, test in list(module.items()):
        if not name.startswith('test_') or (wanted and name not in wanted):
            continue
        began = time.monotonic()
        try:
            word = test()
            print(f'{name}: {"skipped, as " + word if word else "ok"} ({time.monotonic() - began:.1f} s)', flush=True)
        except Exception as error:  # each of them, so that one does not hide another
            traceback.print_exc()
            failed += 1
            print(f'{name}: FAILED: {error}', flush=True)
    return 1 if failed else 0
