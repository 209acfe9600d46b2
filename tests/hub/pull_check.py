#!/usr/bin/env python3
"""Fetching models, against a local server that speaks the hub's API and fails in each way that it can.

pull_check.py KVASIR MODEL [TEST...]

Each function below `test_` is a fault or a feature. A fault ends in a whole file or in one line, which is given in full.
"""
import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time

from fake_hub import COMMIT, Hub

PATIENCE = 120  # seconds; only what hangs takes so long
FILE = 'model.Q4_K_M.gguf'
KVASIR, MODEL = '', b''


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


def cuts_after(count):
    """Sends so many bytes of the rest, and resets the connection."""
    def fault(handler, _):
        content = handler.hub.files[FILE]
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


# What works


def test_fetches_into_the_layout_of_the_hugging_face_tools():
    with Case() as case:
        errors = case.expect_whole(case.pull())
        assert errors == 'kvasir: 3.4 MiB of hf:user/repo fetched, with the hash that the hub lists\n', errors
        case.hub.requests.clear()
        code, out, errors = case.pull()
        assert code == 0 and errors == 'kvasir: hf:user/repo is in the cache already\n', errors
        assert not case.hub.of('cdn')
        code, out, _ = case.pull('user/repo', '--json')
        answer = json.loads(out)
        assert answer['commit'] == COMMIT and answer['bytes'] == len(MODEL) and answer['fetched_bytes'] == 0
        assert answer['files'] == [answer['path']] and answer['path'].endswith(f'/snapshots/{COMMIT}/{FILE}')


def test_huggingface_hub_finds_the_file():
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return 'huggingface_hub is not installed'
    with Case() as case:
        case.expect_whole(case.pull())
        found = try_to_load_from_cache('user/repo', FILE, cache_dir=case.cache)
        assert found and pathlib.Path(found).read_bytes() == MODEL


def test_finds_what_huggingface_hub_fetched():
    """Their client on the same server, and then ours without it: both agree on the layout, and on this server."""
    with Case() as case:
        program = f'import huggingface_hub; print(huggingface_hub.hf_hub_download("user/repo", "{FILE}"))'
        environment = {'HOME': str(case.home), 'HF_ENDPOINT': case.hub.endpoint, 'HF_HUB_DISABLE_XET': '1', 'NO_PROXY': '*'}
        done = subprocess.run([sys.executable, '-c', program], env=environment, capture_output=True, text=True,
                              timeout=PATIENCE, check=False)
        if 'ModuleNotFoundError' in done.stderr:
            return 'huggingface_hub is not installed'
        assert done.returncode == 0, done.stderr
        contents = len(case.hub.of('cdn'))
        code, out, errors = case.run('models', '--json')
        assert ['hf:user/repo:Q4_K_M'] == [model['name'] for model in json.loads(out)['models'] if model['where'] == 'hub'], out
        case.expect_whole(case.pull())
        assert case.pull()[1] == done.stdout and len(case.hub.of('cdn')) == contents
        assert case.run('tokenize', '-m', 'hf:user/repo', '--offline', '-p', 'x')[0] == 0


def test_m_fetches_and_runs():
    with Case() as case:
        case.hub.files = {'tiny-Q8_0.gguf': MODEL}
        run = ['run', '-p', 'Once', '-n', '4', '--temp', '0', '-t', '1', '-q', '--kv', 'full']
        plain = case.run(*run, '-m', SOURCE)
        assert plain[0] == 0 and plain[1]
        for name in (['-m', 'hf:user/repo'], ['-hf', 'user/repo'], ['-hf=user/repo:q8_0'], ['hf:user/repo:Q8_0']):
            assert case.run(*run, *name) == plain, name
        assert len(case.hub.of('cdn')) == 1
        # From here on the hub is not needed.
        case.environment = {'HF_ENDPOINT': 'http://127.0.0.1:1'}
        assert case.run(*run, '-m', 'hf:user/repo:Q8_0') == plain
        assert case.run(*run, '-m', 'hf:user/repo', '--offline') == plain
        case.environment['HF_HUB_OFFLINE'] = '1'
        assert case.run(*run, '-m', 'hf:user/repo') == plain
        code, _, errors = case.run(*run, '-m', 'hf:user/repo:Q2_K')
        assert code == 2 and errors == ('kvasir: hf:user/repo:Q2_K is not in the cache, and nothing is fetched offline '
                                        '(--offline, HF_HUB_OFFLINE)\n'), errors


def test_m_uses_the_cache_where_the_hub_cannot_be_reached():
    with Case() as case:
        case.hub.files = {'tiny-Q8_0.gguf': MODEL}
        assert case.pull()[0] == 0
        case.environment = {'HF_ENDPOINT': 'http://127.0.0.1:1'}
        code, _, errors = case.run('tokenize', '-m', 'hf:user/repo', '-p', 'x')
        assert code == 0, errors
        assert re.fullmatch(r'kvasir: cannot reach http://127.0.0.1:1: .*; the cache has tiny-Q8_0.gguf\n', errors), errors


def test_environment_variables_and_configuration_name_models():
    with Case() as case:
        case.environment = {'KVASIR_MODEL': 'hf:user/repo'}
        code, out, errors = case.run('tokenize', '-p', 'x')
        assert code == 0 and len(case.hub.of('cdn')) == 1, errors
        code, _, errors = case.run('info', '-m', f'{case.home}/none')
        assert code == 2 and errors == f"kvasir: cannot open '{case.home}/none': No such file or directory\n", errors
        case.environment = {}
        config = case.home / 'kvasir.toml'
        config.write_text('model = "hf:user/repo:Q9_Q"\nport = 0\n')
        code, _, errors = case.run('serve', '--config', str(config))
        assert code == 2 and errors == 'kvasir: user/repo has no Q9_Q; there is: Q4_K_M\n', errors


def test_folders_of_the_cache():
    for variables, folder in (({'HF_HUB_CACHE': 'a', 'HUGGINGFACE_HUB_CACHE': 'b', 'HF_HOME': 'c'}, 'a'),
                              ({'HUGGINGFACE_HUB_CACHE': 'b', 'HF_HOME': 'c'}, 'b'),
                              ({'HF_HOME': 'c', 'XDG_CACHE_HOME': 'd'}, 'c/hub'),
                              ({'XDG_CACHE_HOME': 'd'}, 'd/huggingface/hub')):
        with Case() as case:
            case.environment = {name: f'{case.home}/{value}' for name, value in variables.items()}
            case.repo = case.home / folder / 'models--user--repo'
            case.expect_whole(case.pull())


def test_listing_in_pages():
    with Case() as case:
        case.hub.page = 1
        case.hub.files = {**{f'other-{i}.Q2_K.gguf': b'x' for i in range(7)}, FILE: MODEL}
        case.expect_whole(case.pull())
        assert len(case.hub.of('hub', '/tree/')) == 8


def test_listing_that_does_not_end():
    with Case() as case:
        def endless(handler, path):
            if '/tree/' not in path:
                return False
            handler.send_json([], [('Link', f'<{handler.hub.endpoint}{path}>; rel="next"')])
            return True
        case.hub.hub_fault = endless
        case.expect_line(case.pull(), r"the hub's listing of user/repo does not end", 2)


def test_listing_that_goes_on_elsewhere():
    with Case() as case:
        def elsewhere(handler, path):
            if '/tree/' not in path:
                return False
            handler.send_json([], [('Link', f'<{handler.hub.cdn_address}/x>; rel="next"')])
            return True
        case.hub.hub_fault = elsewhere
        case.expect_line(case.pull(), r"the hub's listing of user/repo goes on at another host", 2)
        assert not case.hub.of('cdn')


def test_quantizations():
    with Case() as case:
        names = ['mmproj-F16.gguf', 'imatrix-Q4_K_M.gguf', 'mtp-Q4_K_M.gguf', 'm-IQ4_XS.gguf', 'm-Q4_K_S.gguf',
                 'm-Q8_0.gguf']
        case.hub.files = {name: name.encode() for name in names}
        for tag, file in (('', 'm-Q8_0.gguf'), (':q4_k_s', 'm-Q4_K_S.gguf'), (':IQ4_XS', 'm-IQ4_XS.gguf'),
                          ('/m-Q4_K_S.gguf', 'm-Q4_K_S.gguf')):
            case.expect_whole(case.pull(f'hf:user/repo{tag}'), file)
        code, out, errors = case.pull('hf:user/repo:Q4_XS')
        assert code == 2 and out == ''
        assert errors == 'kvasir: user/repo has no Q4_XS; there is: IQ4_XS, Q4_K_S, Q8_0\n', errors


def test_no_model_in_the_repository():
    with Case() as case:
        case.hub.files = {'model.safetensors': b'x', 'mmproj-F16.gguf': b'y'}
        result = case.pull()
        assert result == (2, '', 'kvasir: user/repo has no GGUF file of a model; look for a repository of the same model '
                          'in GGUF\n'), result


def test_all_parts_of_a_split_model():
    with Case() as case:
        parts = [f'big-Q4_K_M-{i:05}-of-00006.gguf' for i in range(1, 7)]
        case.hub.files = {part: part.encode() * 20000 for part in parts}
        most, now, lock = [0], [0], threading.Lock()

        def count(handler, _):
            with lock:
                now[0] += 1
                most[0] = max(most[0], now[0])
            deadline = time.monotonic() + 5
            while most[0] < 4 and time.monotonic() < deadline:  # until the others are here
                time.sleep(0.01)
            with lock:
                now[0] -= 1
            return False
        case.hub.cdn_fault = count
        code, out, errors = case.pull('hf:user/repo', '--json')
        assert code == 0, errors
        answer = json.loads(out)
        assert [pathlib.Path(path).name for path in answer['files']] == parts
        for path in answer['files']:
            assert pathlib.Path(path).read_bytes() == case.hub.files[pathlib.Path(path).name]
        assert most[0] == 4, most
        listed = json.loads(case.run('models', '--json')[1])['models']
        assert [model['name'] for model in listed if model['where'] == 'hub'] == ['hf:user/repo:Q4_K_M']
        assert [model['bytes'] for model in listed if model['where'] == 'hub'] == [answer['bytes']]


def test_a_part_is_missing():
    with Case() as case:
        case.hub.files = {'big-Q4_K_M-00001-of-00002.gguf': b'x'}
        result = case.pull()
        assert result == (2, '', "kvasir: user/repo has not all parts of the model: 'big-Q4_K_M-00002-of-00002.gguf' is "
                          'missing\n'), result


def test_file_in_a_folder_and_outside_lfs():
    with Case() as case:
        path = 'some folder/x/tiny-Q4_K_M.gguf'
        case.hub.files = {path: b'GGUF' * 1000}
        case.hub.plain = {path}
        case.expect_whole(case.pull(), path)
        case.hub.files[path] = b'GGUf' * 1000  # what the listing says has another hash
        original = case.hub.git_sha1
        other = original(path)
        case.hub.git_sha1 = lambda _: '0' * 39 + '1'
        code, _, errors = case.pull()
        assert code == 2 and other not in errors, errors
        assert errors.splitlines()[-1] == (f"kvasir: the content of '{path}' does not have the hash that the hub lists, "
                                           'twice; nothing is kept'), errors


# Faults of the connection


def test_cut_line_goes_on():
    with Case() as case:
        third = len(MODEL) // 3
        case.hub.cdn_fault = once(cuts_after(third), 2)
        errors = case.expect_whole(case.pull())
        assert re.match(f'kvasir: the connection to {case.cdn()} broke: .*; trying again in 0.01 s\n', errors), errors
        ranges = [request[3].get('Range') for request in case.hub.of('cdn')]
        assert ranges[0] is None and len(ranges) == 3, ranges
        firsts = [int(given[6:-1]) for given in ranges[1:]]
        assert 0 < firsts[0] <= third and firsts[0] < firsts[1] <= 2 * third, firsts
        assert case.hub.of('cdn')[1][3].get('If-Range') == '"same"'


def test_cut_line_again_and_again():
    with Case() as case:
        case.hub.cdn_fault = cuts_after(1000)
        errors = case.expect_line(case.pull('hf:user/repo', '--tries', '3'),
                                  f'the connection to {case.cdn()} broke: .* \\(3 tries\\); run the same command again to '
                                  'go on')
        assert errors.count('trying again') == 2 and len(case.hub.of('cdn')) == 3
        kept = case.partial().read_bytes()
        assert kept and MODEL.startswith(kept)
        # The next pull goes on there.
        case.hub.cdn_fault = None
        case.hub.requests.clear()
        case.expect_whole(case.pull())
        assert [request[3].get('Range') for request in case.hub.of('cdn')] == [f'bytes={len(kept)}-']


def test_stall_is_tried_again():
    with Case() as case:
        released = threading.Event()

        def stalls(handler, _):
            handler.send_response(200)
            handler.send_header('Content-Length', str(len(MODEL)))
            handler.end_headers()
            handler.wfile.write(MODEL[:5000])
            handler.wfile.flush()
            released.wait(PATIENCE)
            return True
        case.hub.cdn_fault = once(stalls)
        errors = case.expect_whole(case.run('pull', 'hf:user/repo', '--wait', '0.01', '--timeout', '1'))
        assert errors.startswith(f'kvasir: {case.hub.cdn_address} sent nothing for 1 s; trying again in 0.01 s\n'), errors
        assert case.hub.of('cdn')[1][3].get('Range') == 'bytes=5000-'
        released.set()


def test_server_that_never_answers():
    with Case() as case:
        released = threading.Event()
        case.hub.hub_fault = lambda *_: released.wait(PATIENCE) or True
        case.expect_line(case.run('pull', 'hf:user/repo', '--wait', '0', '--timeout', '0.2', '--tries', '2'),
                         f'{case.site()} sent nothing for 0.2 s \\(2 tries\\); run the same command again to go on')
        released.set()


def test_no_server():
    with Case() as case:
        case.environment = {'HF_ENDPOINT': 'http://127.0.0.1:1'}
        case.expect_line(case.pull(), 'cannot reach http://127.0.0.1:1: .*')


def test_too_many_requests_and_unavailable_wait_as_long_as_asked():
    for status in (429, 503):
        for place in ('hub', 'cdn'):
            with Case() as case:
                fault = once(answers(status, [('Retry-After', '1')]))
                if place == 'hub':
                    case.hub.hub_fault = fault
                else:
                    case.hub.cdn_fault = fault
                errors = case.expect_whole(case.pull())
                assert f'answers with status {status}; trying again in 1 s' in errors, errors
                times = [moment for moment, request in zip(case.hub.times, case.hub.requests) if request[0] == place]
                assert times[1] - times[0] >= 1, times


def test_too_long_to_wait():
    with Case() as case:
        case.hub.hub_fault = answers(429, [('Retry-After', '4000')])
        case.expect_line(case.pull(), f'{case.site()} answers with status 429, and asks for 4000 s; try again then')
        assert len(case.hub.requests) == 1


def test_server_error_is_tried_again():
    with Case() as case:
        case.hub.cdn_fault = once(answers(500), 2)
        errors = case.expect_whole(case.pull())
        assert errors.count('answers with status 500; trying again') == 2, errors
        case.hub.hub_fault = answers(502)
        code, _, errors = case.pull()
        assert code == 1 and errors.count('trying again') == 4, errors
        assert errors.splitlines()[-1] == (f'kvasir: {case.hub.endpoint} answers with status 502 (5 tries); run the same '
                                           'command again to go on'), errors


# Faults of the content


def test_wrong_content():
    with Case() as case:
        wrong = bytearray(MODEL)
        wrong[-1] ^= 1
        case.hub.served[FILE] = bytes(wrong)
        case.expect_line(case.pull(), f"the content of '{FILE}' does not have the hash that the hub lists, twice; nothing "
                         'is kept', 2)
        assert not case.partial().exists() and len(case.hub.of('cdn')) == 2


def test_wrong_partial_starts_over():
    with Case() as case:
        case.partial().parent.mkdir(parents=True)
        case.partial().write_bytes(b'x' * 1000)
        errors = case.expect_whole(case.pull())
        assert 'does not have the hash' in errors, errors
        assert [request[3].get('Range') for request in case.hub.of('cdn')] == ['bytes=1000-', None]


def test_partial_that_is_whole_or_too_long():
    with Case() as case:
        case.partial().parent.mkdir(parents=True)
        case.partial().write_bytes(MODEL)
        case.expect_whole(case.pull())
        assert not case.hub.of('cdn')
    with Case() as case:
        case.partial().parent.mkdir(parents=True)
        case.partial().write_bytes(MODEL + b'x')
        case.expect_whole(case.pull())
        assert [request[3].get('Range') for request in case.hub.of('cdn')] == [None]


def test_partial_that_is_a_link():
    with Case() as case:
        case.partial().parent.mkdir(parents=True)
        victim = case.home / 'victim'
        victim.write_bytes(b'mine')
        case.partial().symlink_to(victim)
        case.expect_line(case.pull(), f"cannot create '{re.escape(str(case.partial()))}': Too many levels of symbolic "
                         'links', 2)
        assert victim.read_bytes() == b'mine'


def test_wrong_size():
    with Case() as case:
        case.hub.listed_size[FILE] = len(MODEL) + 5
        case.hub.hide_links = True
        case.expect_line(case.pull(), f"the server has {len(MODEL)} bytes of '{FILE}', and the hub lists "
                         f'{len(MODEL) + 5}; try again later')


def test_more_bytes_than_listed():
    with Case() as case:
        def chunked(handler, _):
            handler.send_response(200)
            handler.send_header('Connection', 'close')
            handler.end_headers()
            with contextlib.suppress(OSError):
                handler.wfile.write(MODEL + b'x' * 100)
            handler.close_connection = True
            return True
        case.hub.cdn_fault = chunked
        case.expect_line(case.pull('hf:user/repo', '--tries', '2'),
                         f"the server sends more than the {len(MODEL)} bytes of '{FILE}' \\(2 tries\\); run the same "
                         'command again to go on')


def test_fewer_bytes_than_listed():
    with Case() as case:
        def ends_early(handler, _):
            handler.send_response(200)
            handler.send_header('Connection', 'close')
            handler.end_headers()
            handler.wfile.write(MODEL[:7000])
            handler.close_connection = True
            return True
        case.hub.cdn_fault = once(ends_early)
        errors = case.expect_whole(case.pull())
        assert errors.startswith(f"kvasir: the server ended '{FILE}' after 7000 of {len(MODEL)} bytes; trying again"), errors
        assert case.hub.of('cdn')[1][3].get('Range') == 'bytes=7000-'


def test_file_changes_between_tries():
    with Case() as case:
        changed = b'GGUF' + bytes(len(MODEL) - 4)

        def cut_and_change(handler, path):
            cuts_after(5000)(handler, path)
            handler.hub.files[FILE] = changed
            return True
        old = case.partial()
        case.hub.cdn_fault = once(cut_and_change)
        result = case.pull()
        case.expect_line(result, f"'{FILE}' changed on the hub while it was fetched; run the same command again")
        assert old.stat().st_size > 0
        # The next pull asks for the listing again. What is left of the old content is not mixed into the new.
        case.hub.requests.clear()
        case.expect_whole(case.pull())
        assert [request[3].get('Range') for request in case.hub.of('cdn')] == [None]


def test_content_changes_at_the_cdn_alone():
    with Case() as case:
        case.hub.hide_links = True
        changed = b'GGUF' + bytes(len(MODEL) - 4)

        def cut_and_change(handler, path):
            handler.etag = ''
            cuts_after(5000)(handler, path)
            handler.hub.served[FILE] = changed
            return True
        case.hub.cdn_fault = once(cut_and_change)
        case.expect_line(case.pull(), f"the content of '{FILE}' does not have the hash that the hub lists, twice; nothing "
                         'is kept', 2)
        # Its ETag was another: the second try got the whole of it, and said for which content it asked.
        assert case.hub.of('cdn')[1][3].get('If-Range') == '"same"'


def test_range_is_ignored():
    with Case() as case:
        def whole(handler, _):
            handler.answer(200, MODEL)
            return True
        case.partial().parent.mkdir(parents=True)
        case.partial().write_bytes(MODEL[:1234])
        case.hub.cdn_fault = whole
        case.expect_whole(case.pull())
        assert [request[3].get('Range') for request in case.hub.of('cdn')] == ['bytes=1234-']


def test_wrong_content_range():
    for answer in ('bytes 0-99/100', 'bytes 1233-{last}/{size}', 'bytes 1234-{last}/99', 'nonsense', ''):
        with Case() as case:
            def elsewhere(handler, _):
                given = answer.format(last=len(MODEL) - 1, size=len(MODEL))
                handler.answer(206, MODEL[1234:], [('Content-Range', given)] if given else [])
                return True
            case.partial().parent.mkdir(parents=True)
            case.partial().write_bytes(MODEL[:1234])
            case.hub.cdn_fault = once(elsewhere)
            errors = case.expect_whole(case.pull())
            assert errors.startswith(f"kvasir: the server goes on at another place than was asked for '{FILE}'; trying "
                                     'again'), errors
            assert [request[3].get('Range') for request in case.hub.of('cdn')] == ['bytes=1234-', None]


def test_range_is_refused():
    with Case() as case:
        case.partial().parent.mkdir(parents=True)
        case.partial().write_bytes(MODEL[:1234])
        case.hub.cdn_fault = once(answers(416, [('Content-Range', f'bytes */{len(MODEL)}')]))
        errors = case.expect_whole(case.pull())
        assert errors.startswith(f"kvasir: the server refuses to go on for '{FILE}'; trying again"), errors


# Redirects, and who gets the token


def test_endless_redirect():
    with Case() as case:
        def around(handler, path):
            handler.answer(302, b'', [('Location', path)])
            return True
        case.hub.hub_fault = of_contents(around)
        case.expect_line(case.pull(), f'{case.site()} redirects more than 8 times; try again later')
        assert len(case.hub.of('hub', '/resolve/')) == 9


def test_redirect_to_a_file():
    for location in ('file:///etc/passwd', 'ftp://127.0.0.1/x', 'gopher://127.0.0.1:1/x'):
        with Case() as case:
            case.hub.hub_fault = of_contents(answers(302, [('Location', location)]))
            case.expect_line(case.pull(), f"{case.site()} redirects to '{re.escape(location)}', which is no http address; "
                             'nothing is fetched')
    with Case() as case:
        case.hub.hub_fault = of_contents(answers(302))
        case.expect_line(case.pull(), f"{case.site()} redirects to '', which is no http address; nothing is fetched")


def test_relative_redirect():
    with Case() as case:
        def once_more(handler, path):
            if 'again' in path:
                return False
            handler.answer(307, b'', [('Location', path + '?again=1')])
            return True
        case.hub.hub_fault = of_contents(once_more)
        case.expect_whole(case.pull())


def test_token_stays_with_the_hub():
    for way in ('variable', 'file', 'path'):
        with Case() as case:
            case.hub.token = 'hf_' + 'a' * 34
            if way == 'variable':
                case.environment = {'HF_TOKEN': case.hub.token}
            elif way == 'file':
                token = case.home / '.cache/huggingface/token'
                token.parent.mkdir(parents=True)
                token.write_text(case.hub.token + '\n')
            else:
                (case.home / 'secret').write_text(case.hub.token)
                case.environment = {'HF_TOKEN_PATH': str(case.home / 'secret')}
            case.hub.cdn_fault = once(cuts_after(5000))  # a second try too
            case.expect_whole(case.pull())
            assert len(case.hub.of('hub')) >= 4
            assert all(request[3].get('Authorization') == f'Bearer {case.hub.token}' for request in case.hub.of('hub'))
            cdn = case.hub.of('cdn')
            assert len(cdn) == 2
            assert not any(case.hub.token in str(request) for request in cdn), cdn


def test_gated_repository():
    with Case() as case:
        case.hub.token = 'hf_' + 'a' * 34
        case.expect_line(case.pull(), f'{case.site()} refuses access \\(Access to model user/repo is restricted\\): check '
                         'the name; for a private or gated model accept its terms on its page, and set HF_TOKEN', 2)
        case.environment = {'HF_TOKEN': 'hf_wrong'}
        case.expect_line(case.pull(), f'{case.site()} refuses access \\(Access to model user/repo is restricted\\): the '
                         'token of HF_TOKEN does not permit it', 2)
        case.environment = {'HF_TOKEN': 'hf_a\nX-Evil: 1'}
        case.expect_line(case.pull(), 'the token of HF_TOKEN, or of its file, has characters that no token has', 2)
    with Case() as case:
        case.hub.hub_fault = of_contents(answers(403, [('X-Error-Message', 'Ask for access')]))
        case.expect_line(case.pull(), f'{case.site()} refuses access \\(Ask for access\\): check the name; for a private '
                         'or gated model accept its terms on its page, and set HF_TOKEN', 2)


def test_no_such_repository():
    with Case() as case:
        result = case.pull('hf:user/other')
        case.expect_line(result, f'{case.site()} has no such repository, revision or file \\(Repository not found\\)', 2)
        result = case.pull('hf:user/repo@v2')
        case.expect_line(result, f'{case.site()} has no such repository, revision or file \\(Repository not found\\)', 2)


# Answers that are not to be trusted


def test_hostile_names():
    for name in ('../../../../evil.gguf', '/tmp/evil.gguf', 'a/../../evil.gguf', 'a\\..\\evil.gguf', 'a/./evil.gguf',
                 'a//evil.gguf', 'evil\x00.gguf', 'evil\n.gguf', '\x1b[31m.gguf', 'x' * 300 + '.gguf'):
        with Case() as case:
            case.hub.entries = [{**case.hub.entry(FILE), 'path': name}]
            code, out, errors = case.pull()
            assert (code, out) == (2, ''), (name, errors)
            assert errors.startswith('kvasir: the hub lists a file whose name would leave the cache folder: '), errors
            assert errors.count('\n') == 1 and '\x1b' not in errors, errors
            assert not case.cache.exists() and not case.hub.of('cdn')


def test_hostile_hashes_and_commits():
    for oid in ('../../../../evil', 'g' * 64, 'A' * 64, '', 'a' * 63):
        with Case() as case:
            entry = case.hub.entry(FILE)
            entry['lfs']['oid'] = oid
            case.hub.files = {}
            case.hub.entries = [entry]
            case.expect_line(case.pull(), "the hub's answer is malformed: a file has no hash; is HF_ENDPOINT the address "
                             'of a hub\\?', 2)
    for commit in ('../../evil', 'main', 'A' * 40):
        with Case() as case:
            case.hub.commit = commit
            case.expect_line(case.pull(), "the hub's answer is malformed: 'sha' is no commit; is HF_ENDPOINT the address "
                             'of a hub\\?', 2)


def test_links_in_the_cache_are_not_followed():
    with Case() as case:
        case.hub.files = {'x/tiny-Q4_K_M.gguf': MODEL}
        outside = case.home / 'outside'
        outside.mkdir()
        snapshot = case.repo / 'snapshots' / COMMIT
        snapshot.mkdir(parents=True)
        (snapshot / 'x').symlink_to(outside)
        code, _, errors = case.pull()
        assert code == 2 and errors.splitlines()[-1] == (
            f"kvasir: cannot create '{snapshot}/x/tiny-Q4_K_M.gguf': Not a directory"), errors
        assert not list(outside.iterdir())


def test_answers_that_are_no_json():
    for body, problem in ((b'<html>', "its list of files is not a JSON array"), (b'{}', "its list of files is not a JSON array"),
                          (b'[1]', 'its list of files holds something else'), (b'[' * 100000, 'its list of files is not a JSON array'),
                          (b'[{"type":"file","path":"a.gguf"}]', 'a file has no size'),
                          (b'[{"type":"file","path":"a.gguf","size":-1}]', 'a file has no size'),
                          (b'[{"type":"file","path":"a.gguf","size":1e30}]', 'a file has no size'),
                          (b'[{"type":"file","path":"a.gguf","size":1}]', 'a file has no hash')):
        with Case() as case:
            def lies(handler, path, body=body):
                if '/tree/' not in path:
                    return False
                handler.answer(200, body)
                return True
            case.hub.hub_fault = lies
            case.expect_line(case.pull(), f"the hub's answer is malformed: {problem}; is HF_ENDPOINT the address of a hub\\?", 2)


def test_huge_answer():
    with Case() as case:
        def huge(handler, path):
            handler.send_response(200)
            handler.send_header('Connection', 'close')
            handler.end_headers()
            with contextlib.suppress(OSError):
                for _ in range(40):
                    handler.wfile.write(b' ' * (1 << 20))
            handler.close_connection = True
            return True
        case.hub.hub_fault = huge
        case.expect_line(case.pull(), "the hub's answer is malformed: it is longer than 33554432 bytes", 2)


# The machine


def test_full_disk_before_the_start():
    with Case() as case:
        size = 1 << 49
        case.hub.listed_size[FILE] = size
        case.hub.hide_links = True
        case.expect_line(case.pull(), f"the disk of '{re.escape(str(case.cache))}' has \\d+ bytes free, and {size} are "
                         'needed; make room, or set HF_HUB_CACHE')
        assert not case.hub.of('cdn')


def test_full_disk_on_the_way():
    with Case() as case:
        limit = 1 << 20
        result = case.pull(limit=limit)
        case.expect_line(result, f"cannot write '{re.escape(str(case.partial()))}': File too large; {len(MODEL) - limit} "
                         'more bytes are needed; \\d+ are free; make room and run the same command again')
        assert case.partial().read_bytes() == MODEL[:limit]
        case.expect_whole(case.pull())
        assert case.hub.of('cdn')[1][3].get('Range') == f'bytes={limit}-'


def test_full_file_system():
    with Case() as case:
        small = case.home / 'small'
        small.mkdir()
        mounted = subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=2m', 'tmpfs', str(small)], capture_output=True)
        if mounted.returncode != 0:
            return 'a small file system cannot be mounted'
        try:
            case.environment = {'HF_HUB_CACHE': str(small)}
            code, _, errors = case.pull()
            assert code == 1, errors
            assert re.fullmatch(rf"kvasir: the disk of '{small}' has \d+ bytes free, and {len(MODEL)} are needed; make "
                                r'room, or set HF_HUB_CACHE\n', errors), errors

            # Another program fills it meanwhile.
            def fill(_handler, _path):
                with contextlib.suppress(OSError), open(small / 'filler', 'wb') as file:
                    for _ in range(1 << 10):
                        file.write(b'x' * 4096)
                        file.flush()
                return False
            case.hub.files[FILE] = MODEL[:1 << 20]
            case.hub.cdn_fault = fill
            code, _, errors = case.pull()
            assert code == 1 and re.search(r'No space left on device; \d+ more bytes are needed; \d+ are free; make room and '
                                           r'run the same command again\n$', errors), errors
            (small / 'filler').unlink()
            case.hub.cdn_fault = None
            assert case.pull()[0] == 0
        finally:
            subprocess.run(['umount', str(small)], check=False)


def test_two_processes():
    with Case() as case:
        first_is_at_it, go = threading.Event(), threading.Event()

        def hold(_handler, _path):
            first_is_at_it.set()
            go.wait(PATIENCE)
            return False
        case.hub.cdn_fault = hold
        one = case.start('pull', 'hf:user/repo')
        assert first_is_at_it.wait(PATIENCE)
        two = case.start('pull', 'hf:user/repo')
        line = two.stderr.readline()
        assert line == 'kvasir: another process is fetching user/repo; waiting for it\n', line
        go.set()
        out = [process.communicate(timeout=PATIENCE) for process in (one, two)]
        assert (one.returncode, two.returncode) == (0, 0), out
        assert out[0][0] == out[1][0] and out[1][1] == 'kvasir: hf:user/repo is in the cache already\n', out
        case.expect_whole((0, out[0][0], ''))
        assert len(case.hub.of('cdn')) == 1


def test_lock_of_the_hugging_face_tools():
    with Case() as case:
        locks = case.cache / '.locks/models--user--repo'
        locks.mkdir(parents=True)
        with open(locks / f'{case.hub.oid(FILE)}.lock', 'w', encoding='ascii') as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            process = case.start('pull', 'hf:user/repo')
            assert process.stderr.readline() == 'kvasir: another process is fetching user/repo; waiting for it\n'
            assert not case.hub.of('cdn')
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=PATIENCE)
            assert process.returncode == 1, (process.returncode, errors)
            assert errors == 'kvasir: stopped while another process fetches the same file\n', errors


def test_interrupt_leaves_a_partial_file():
    with Case() as case:
        case.hub.chunk = (100_000, 0.05)
        for wanted in (signal.SIGINT, signal.SIGTERM):
            before = case.partial().stat().st_size if case.partial().exists() else 0
            process = case.start('pull', 'hf:user/repo')
            deadline = time.monotonic() + PATIENCE
            while not (case.partial().exists() and case.partial().stat().st_size > before + 100_000):
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.01)
            process.send_signal(wanted)
            _, errors = process.communicate(timeout=PATIENCE)
            assert process.returncode == (-signal.SIGINT if wanted == signal.SIGINT else 1), process.returncode
            assert errors == 'kvasir: stopped; run the same command again to go on\n', errors
        kept = case.partial().read_bytes()
        assert len(kept) > 200_000 and MODEL.startswith(kept)
        case.hub.chunk = None
        case.hub.requests.clear()
        case.expect_whole(case.pull())
        assert [request[3].get('Range') for request in case.hub.of('cdn')] == [f'bytes={len(kept)}-']


def test_kill_at_random_places():
    """50 times: kill -9 in the middle of a pull, at a place that does not depend on how fast the machine is."""
    chance = random.Random(36)
    content = MODEL[:2 << 20]
    places = set()
    with Case(content) as case:
        for _ in range(50):
            reached = threading.Event()
            # The server sends up to here, and no further until the client is dead.
            place = chance.choice([0, chance.randrange(len(content)), chance.randrange(len(content)), len(content)])

            def up_to(handler, _path, place=place, reached=reached):
                given = handler.headers.get('Range')
                first = int(given[6:-1]) if given else 0
                last = max(first, place)
                handler.send_response(206 if first else 200)
                handler.send_header('Content-Length', str(len(content) - first))
                if first:
                    handler.send_header('Content-Range', f'bytes {first}-{len(content) - 1}/{len(content)}')
                handler.end_headers()
                with contextlib.suppress(OSError):
                    handler.wfile.write(content[first:last])
                    handler.wfile.flush()
                    reached.set()
                    handler.connection.recv(1)  # returns when the client is gone
                handler.close_connection = True
                return True
            case.hub.cdn_fault = up_to
            process = case.start('pull', 'hf:user/repo', '--timeout', '600')
            while not reached.wait(0.005):  # a whole partial file asks nobody
                if process.poll() is not None:
                    break
            if chance.random() < 0.7:
                time.sleep(chance.random() * 0.01)  # somewhere between the last byte and the new name
            process.kill()
            process.communicate(timeout=PATIENCE)
            if case.partial().exists():
                places.add(case.partial().stat().st_size)
                assert content.startswith(case.partial().read_bytes())
            elif case.blob().exists():
                assert case.blob().read_bytes() == content
                places.add(len(content))
            if chance.random() < 0.5:
                case.hub.cdn_fault = None
                case.expect_whole(case.pull())
                subprocess.run(['rm', '-rf', str(case.repo)], check=True)
    assert len(places) > 10, places  # it was killed at many places


# What is here


def fill_stores(case):
    """A model in each place where `kvasir models` looks."""
    own = case.home / '.cache/kvasir/models'
    own.mkdir(parents=True)
    (own / 'mine.Q4_1.gguf').write_bytes(MODEL)
    digest = hashlib.sha256(MODEL).hexdigest()
    ollama = case.home / '.ollama/models'
    (ollama / 'blobs').mkdir(parents=True)
    (ollama / 'blobs' / f'sha256-{digest}').write_bytes(MODEL)
    layer = {'mediaType': 'application/vnd.ollama.image.model', 'digest': f'sha256:{digest}', 'size': len(MODEL)}
    manifest = {'schemaVersion': 2, 'config': {}, 'layers': [{'mediaType': 'x', 'digest': 'sha256:00'}, layer]}
    for place in ('registry.ollama.ai/library/tiny/1b', 'registry.ollama.ai/someone/tiny/latest', 'hf.co/a/b/Q8_0'):
        path = ollama / 'manifests' / place
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(manifest))
    listed = {'mediaType': 'application/vnd.ollama.manifest.list.v2+json', 'manifests': [
        {'runner': 'mlx', 'format': 'safetensors', 'digest': 'sha256:' + '0' * 64},
        {'runner': 'ollama', 'format': 'gguf', 'digest': 'sha256:' + hashlib.sha256(json.dumps(manifest).encode()).hexdigest()}]}
    (ollama / 'blobs' / listed['manifests'][1]['digest'].replace(':', '-')).write_text(json.dumps(manifest))
    path = ollama / 'manifests/registry.ollama.ai/library/new/latest'
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(listed))
    studio = case.home / '.lmstudio/models/someone/studio-GGUF'
    studio.mkdir(parents=True)
    (studio / 'studio-Q8_0.gguf').write_bytes(MODEL)
    (studio / 'mmproj-studio-F16.gguf').write_bytes(b'x')
    return ollama, studio


def test_lists_what_is_here():
    with Case() as case:
        ollama, studio = fill_stores(case)
        case.expect_whole(case.pull())
        models = {model['name']: model for model in json.loads(case.run('models', '--json')[1])['models']}
        models = {name: model for name, model in models.items() if model['where'] != 'bundled'}
        own = f'{case.home}/.cache/kvasir/models/mine.Q4_1.gguf'
        assert {name: model['where'] for name, model in models.items()} == {
            own: 'kvasir', 'hf:user/repo:Q4_K_M': 'hub', 'ollama:tiny:1b': 'ollama', 'ollama:someone/tiny:latest': 'ollama',
            'ollama:hf.co/a/b:Q8_0': 'ollama', 'ollama:new:latest': 'ollama',
            'lmstudio:someone/studio-GGUF:Q8_0': 'lmstudio'}, models
        assert all(model['bytes'] == len(MODEL) for model in models.values()), models
        assert models['hf:user/repo:Q4_K_M']['quant'] == 'Q4_K_M' and models['ollama:tiny:1b']['quant'] is None
        # Each name leads to the file.
        for name in [*models, 'ollama:tiny:1b', 'ollama:someone/tiny', 'ollama:new', str(studio), 'lmstudio:someone/studio-GGUF']:
            code, out, errors = case.run('tokenize', '-m', name, '-p', 'Once', '--offline')
            assert code == 0 and out == case.run('tokenize', '-m', SOURCE, '-p', 'Once')[1], errors
        text = case.run('models')[1]
        assert re.search(r'^hf:user/repo:Q4_K_M +3\.4 MiB  Q4_K_M +hub$', text, re.MULTILINE), text
        for name, line in (('ollama:absent', r'ollama has no ollama:absent:latest here \(.*\); there is: '
                            r'ollama:hf\.co/a/b:Q8_0, ollama:new:latest, ollama:someone/tiny:latest, ollama:tiny:1b'),
                           ('lmstudio:a/b', r'LM Studio has no a/b here \(.*\)')):
            code, _, errors = case.run('info', '-m', name)
            assert code == 2 and re.fullmatch(f'kvasir: {line}\n', errors), errors
        (ollama / 'blobs' / f'sha256-{hashlib.sha256(MODEL).hexdigest()}').unlink()
        code, _, errors = case.run('info', '-m', 'ollama:tiny:1b')
        assert code == 2 and 'are missing; pull it again with ollama' in errors, errors


def test_removes_what_nothing_else_refers_to():
    with Case() as case:
        fill_stores(case)
        case.hub.files['other.Q8_0.gguf'] = b'GGUF' * 1000
        case.expect_whole(case.pull())
        assert case.pull('hf:user/repo:Q8_0')[0] == 0
        # Another snapshot shares one of the contents.
        other = case.repo / 'snapshots' / ('b' * 40)
        other.mkdir()
        (other / FILE).symlink_to(f'../../blobs/{case.hub.oid(FILE)}')
        case.expect_removed('hf:user/repo:Q4_K_M', 'hf:user/repo:Q4_K_M removed, 0 B freed; 3.4 MiB stay, which another '
                            'snapshot refers to\n')
        assert case.blob().exists() and not (case.repo / 'snapshots' / COMMIT / FILE).exists()
        case.expect_removed(f'hf:user/repo:Q4_K_M@{"b" * 40}', f'hf:user/repo:Q4_K_M@{"b" * 40} removed, 3.4 MiB freed\n')
        assert not case.blob().exists() and case.blob('other.Q8_0.gguf').exists()
        case.partial().write_bytes(b'x' * 96)
        case.expect_removed('hf:user/repo:Q8_0', 'hf:user/repo:Q8_0 removed, 4.0 KiB freed\n')
        assert not case.repo.exists()
        own = f'{case.home}/.cache/kvasir/models/mine.Q4_1.gguf'
        case.expect_removed(own, f'{own} removed, 3.4 MiB freed\n')
        assert not os.path.exists(own)


def test_refuses_to_remove_what_is_not_its_own():
    with Case() as case:
        _, studio = fill_stores(case)
        mine = case.home / 'mine.gguf'
        mine.write_bytes(MODEL)
        own = f'{case.home}/.cache/kvasir/models'
        for name, line in (('ollama:tiny:1b', "ollama:tiny:1b belongs to ollama; remove it with 'ollama rm'"),
                           ('lmstudio:someone/studio-GGUF', 'lmstudio:someone/studio-GGUF belongs to LM Studio; remove it there'),
                           (str(mine), f"'{mine}' is not in Kvasir's folder '{own}' and no model of the hub "
                            '(hf:USER/REPO:QUANT)'),
                           (f'{own}/../../../mine.gguf', f"'{own}/../../../mine.gguf' is not in Kvasir's folder '{own}' and "
                            'no model of the hub (hf:USER/REPO:QUANT)'),
                           ('hf:user/absent', f"hf:user/absent is not in the cache '{case.cache}'")):
            result = case.run('models', 'remove', name)
            assert result == (2, '', f'kvasir: {line}\n'), result
        assert mine.exists() and list(studio.iterdir())


def test_says_what_to_type_instead():
    with Case() as case:
        (case.home / 'model.safetensors').write_bytes(b'x')
        (case.home / 'raw').mkdir()
        (case.home / 'raw/model.safetensors').write_bytes(b'x')
        (case.home / 'two').mkdir()
        for name in ('a-Q4_0.gguf', 'b-Q8_0.gguf'):
            (case.home / 'two' / name).write_bytes(MODEL)
        (case.home / 'empty').mkdir()
        for name, line in (
                ('user/repo', "there is no file 'user/repo'; for a model of the Hugging Face hub type -m hf:user/repo"),
                ('https://huggingface.co/user/repo/tree/main', "there is no file 'https://huggingface.co/user/repo/tree/main'; "
                 'for a model of the Hugging Face hub type -m hf:user/repo'),
                ('model.safetensors', "'model.safetensors' holds safetensors, and Kvasir reads GGUF; give a GGUF file of the "
                 'same model, such as -m hf:USER/REPO'),
                ('raw', "the folder 'raw' holds safetensors, and Kvasir reads GGUF; give a GGUF file of the same model, such "
                 'as -m hf:USER/REPO'),
                ('two', "the folder 'two' holds several models; give one of its files: a-Q4_0.gguf, b-Q8_0.gguf"),
                ('empty', "the folder 'empty' holds no GGUF file of a model"),
                ('hf:repo', "'hf:repo' does not name a repository; give hf:USER/REPO, hf:USER/REPO:QUANT or "
                 'hf:USER/REPO/FILE.gguf'),
                ('hf:../x', "'hf:../x' does not name a repository; give hf:USER/REPO, hf:USER/REPO:QUANT or "
                 'hf:USER/REPO/FILE.gguf'),
                ('hf:user/repo/../../x.gguf', "'hf:user/repo/../../x.gguf' names no GGUF file; give hf:USER/REPO, "
                 'hf:USER/REPO:QUANT or hf:USER/REPO/FILE.gguf'),
                ('ollama:../x', "'ollama:../x' does not name a model of ollama; give ollama:NAME or ollama:NAME:TAG")):
            result = case.run('info', '-m', name)
            assert result == (2, '', f'kvasir: {line}\n'), (name, result)
        assert not case.hub.requests


def test_default_model():
    with Case() as case:
        program = case.home / 'opt/bin/kvasir'
        program.parent.mkdir(parents=True)
        os.link(KVASIR, program) if os.stat(KVASIR).st_dev == os.stat(case.home).st_dev else program.write_bytes(
            pathlib.Path(KVASIR).read_bytes())
        program.chmod(0o755)

        def info():
            return subprocess.run([program, 'info', '--json'], env={'HOME': str(case.home)}, capture_output=True, text=True,
                                  timeout=PATIENCE, check=False)
        none = info()
        assert (none.returncode, none.stdout) == (2, ''), none
        assert none.stderr == ('kvasir: no model is given and none is here; give a GGUF file with -m, or fetch one: -m '
                               'hf:USER/REPO\n'), none
        bundled = case.home / 'opt/share/kvasir/models/kvasir-mini-16m-q8_0.gguf'
        bundled.parent.mkdir(parents=True)
        bundled.write_bytes(MODEL)
        assert info().stderr == f'kvasir: model: kvasir-mini-16m (Q8_0), bundled at {bundled}; -m takes another\n'
        own = case.home / '.cache/kvasir/models/SmolLM2-135M-Instruct.Q4_1.gguf'
        own.parent.mkdir(parents=True)
        own.write_bytes(MODEL)  # the beginning of a download by other means
        assert 'bundled' in info().stderr
        with open(own, 'ab') as file:
            file.truncate(98_362_432)
        whole = info()
        assert whole.stderr == f'kvasir: model: SmolLM2-135M-Instruct (Q4_1) at {own}; -m takes another\n', whole.stderr


def expect_removed(self, name, line):
    result = self.run('models', 'remove', name)
    assert result == (0, line, ''), result


Case.expect_removed = expect_removed


def main():
    global KVASIR, MODEL, SOURCE
    KVASIR, SOURCE = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    MODEL = pathlib.Path(SOURCE).read_bytes()
    wanted = sys.argv[3:]
    failed = 0
    for name, test in list(globals().items()):
        if not name.startswith('test_') or (wanted and name not in wanted):
            continue
        began = time.monotonic()
        try:
            word = test()
            print(f'{name}: {"skipped, as " + word if word else "ok"} ({time.monotonic() - began:.1f} s)', flush=True)
        except Exception as error:  # each of them, so that one does not hide another
            import traceback
            traceback.print_exc()
            failed += 1
            print(f'{name}: FAILED: {error}', flush=True)
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
