#!/usr/bin/env python3
"""Fetching models from a local server that fails in each way that it can.

A fault ends in a whole file or in one line, which is given in full.

pull_faults_check.py KVASIR MODEL [TEST...]
"""
import contextlib
import re
import signal
import sys
import time
import threading

from fake_hub import COMMIT
from pull_case import Case, FILE, MODEL, PATIENCE, answers, cuts_after, main, of_contents, once

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


def test_a_stopped_client_is_no_silence_of_the_server():
    with Case(MODEL[:1 << 20]) as case:
        case.hub.chunk = (50_000, 0.05)
        process = case.start('pull', 'hf:user/repo', '--timeout', '1')
        deadline = time.monotonic() + PATIENCE
        while not (case.partial().exists() and case.partial().stat().st_size > 100_000):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGSTOP)
        time.sleep(1.5)
        process.send_signal(signal.SIGCONT)
        out, errors = process.communicate(timeout=PATIENCE)
        case.expect_whole((process.returncode, out, errors))
        assert 'sent nothing' not in errors, errors


def test_refusal_that_does_not_end():
    with Case() as case:
        sent = []

        def endless(handler, _):
            handler.send_response(404)
            handler.end_headers()
            with contextlib.suppress(OSError):
                while True:
                    handler.wfile.write(b'x' * 65536)
                    sent.append(65536)
            handler.close_connection = True
            return True
        case.hub.hub_fault = endless
        case.expect_line(case.pull(), f'hf:user/repo: {case.site()} has no such repository, revision or file', code=2)
        assert sum(sent) < 64 << 20, 'the client went on reading'


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
        case.expect_line(case.pull(), f'hf:user/repo: {case.site()} refuses access \\(Access to model user/repo is restricted\\): check '
                         'the name; for a private or gated model accept its terms on its page, and set HF_TOKEN', 2)
        case.environment = {'HF_TOKEN': 'hf_wrong'}
        case.expect_line(case.pull(), f'hf:user/repo: {case.site()} refuses access \\(Access to model user/repo is restricted\\): the '
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
        case.expect_line(result, f'hf:user/other: {case.site()} has no such repository, revision or file \\(Repository not found\\)', 2)
        result = case.pull('hf:user/repo@v2')
        case.expect_line(result, f'hf:user/repo@v2: {case.site()} has no such repository, revision or file \\(Repository not found\\)', 2)


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


if __name__ == '__main__':
    sys.exit(main(globals()))
