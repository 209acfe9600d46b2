#!/usr/bin/env python3
"""Fetching models from a local server that speaks the hub's API, and what the machine can do to it.

pull_check.py KVASIR MODEL [TEST...]
"""
import contextlib
import fcntl
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import threading
import time

from fake_hub import COMMIT
from pull_case import Case, FILE, MODEL, PATIENCE, SOURCE, main

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


def test_offline_takes_what_the_cache_has():
    with Case() as case:
        case.environment['HF_HUB_OFFLINE'] = '1'
        case.expect_line(case.pull(), "hf:user/repo is not in the cache, and nothing is fetched "
                         r'offline \(--offline, HF_HUB_OFFLINE\)', code=2)
        case.environment = {}
        case.expect_whole(case.pull())
        case.hub.requests.clear()
        case.environment['HF_HUB_OFFLINE'] = '1'
        for name in ('hf:user/repo', f'hf:user/repo:Q4_K_M@{COMMIT}'):
            case.expect_whole(case.pull(name))
        assert not case.hub.requests


def test_damaged_content_is_fetched_again():
    with Case() as case:
        for length in (0, 1000):
            case.expect_whole(case.pull())
            os.truncate(case.blob(), length)
            errors = case.expect_whole(case.pull())
            assert 'fetched, with the hash that the hub lists' in errors, errors


def test_complete_model_needs_no_lock():
    with Case() as case:
        case.expect_whole(case.pull())
        subprocess.run(['rm', '-rf', str(case.cache / '.locks')], check=True)
        (case.cache / '.locks').write_bytes(b'')  # as in a cache that cannot be written
        case.expect_whole(case.pull())


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


if __name__ == '__main__':
    sys.exit(main(globals()))
