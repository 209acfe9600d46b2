#!/usr/bin/env python3
"""Models that are here: listed, found by their names, removed; and the one that is used where none is named.

models_check.py KVASIR MODEL [TEST...]
"""
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys

from fake_hub import COMMIT
from pull_case import Case, FILE, KVASIR, MODEL, PATIENCE, SOURCE, cuts_after, main, once

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
                           (str(mine), f"'{mine}' is not in Kvasir's folder '{own}'; a model of the hub is named "
                            'hf:USER/REPO:QUANT'),
                           (f'{own}/../../../mine.gguf', f"'{own}/../../../mine.gguf' is not in Kvasir's folder '{own}'; a model "
                            'of the hub is named hf:USER/REPO:QUANT'),
                           ('user/repo', f"'user/repo' is not in Kvasir's folder '{own}'; for one of the hub type hf:user/repo"),
                           ('hf:user/absent', f"hf:user/absent is not in the cache '{case.cache}'")):
            result = case.run('models', 'remove', name)
            assert result == (2, '', f'kvasir: {line}\n'), result
        assert mine.exists() and list(studio.iterdir())


def test_what_interrupted_pulls_have_left():
    with Case() as case:
        case.hub.cdn_fault = once(cuts_after(1_000_000), 100)
        assert case.pull('hf:user/repo', '--tries', '1')[0] == 1
        assert case.partial().stat().st_size == 1_000_000
        code, out, errors = case.run('models')
        assert code == 0 and re.search(r'^hf:user/repo +976\.6 KiB  - +hub, fetched in part$', out, re.MULTILINE), out
        assert ("kvasir: 'kvasir pull NAME' goes on with what is fetched in part; 'kvasir models remove --partial NAME' removes "
                'it\n') in errors, errors
        entry = [model for model in json.loads(case.run('models', '--json')[1])['models'] if not model['whole']]
        assert entry == [{'name': 'hf:user/repo', 'path': None, 'bytes': 1_000_000, 'quant': None, 'whole': False,
                          'where': 'hub'}], entry
        case.expect_removed('hf:user/repo', 'hf:user/repo removed, 976.6 KiB freed\n')
        assert not case.repo.exists()
        # Beside a whole model, which stays. A link that has no name yet, and a content without one, go too.
        case.hub.cdn_fault = None
        case.expect_whole(case.pull())
        for name, count in (('a' * 64 + '.incomplete', 500), ('b' * 64, 24)):
            (case.repo / 'blobs' / name).write_bytes(b'x' * count)
        (case.repo / 'blobs' / ('c' * 64 + '.link')).symlink_to('../../blobs/' + 'c' * 64)
        case.expect_removed('hf:user/repo', 'hf:user/repo removed, 524 B freed\n', '--partial')
        assert [path.name for path in (case.repo / 'blobs').iterdir()] == [case.hub.oid(FILE)]
        result = case.run('models', 'remove', '--partial', 'hf:user/repo')
        assert result == (2, '', f"kvasir: the cache '{case.cache}' has nothing of hf:user/repo that is fetched in part\n"), result
        result = case.run('models', 'remove', '--partial', 'ollama:tiny')
        assert result == (2, '', "kvasir: 'ollama:tiny' is no model of the hub (hf:USER/REPO); only those are fetched in "
                          'part\n'), result


def test_removing_never_takes_something_else():
    with Case() as case:
        case.hub.files['other.Q8_0.gguf'] = b'GGUF' * 300_000
        case.hub.cdn_fault = cuts_after(100_000, 'other.Q8_0.gguf')
        assert case.pull('hf:user/repo:Q8_0', '--tries', '1')[0] == 1
        case.hub.cdn_fault = None
        result = case.run('models', 'remove', 'hf:user/repo:Q4_K_M')
        assert result == (2, '', f"kvasir: hf:user/repo:Q4_K_M is not in the cache '{case.cache}'; --partial removes what is "
                          'fetched in part\n'), result
        assert case.partial('other.Q8_0.gguf').stat().st_size == 100_000
        case.expect_whole(case.pull())
        result = case.run('models', 'remove', 'hf:user/repo:Q2_K')
        assert result == (2, '', f"kvasir: hf:user/repo:Q2_K is not in the cache '{case.cache}'; there is: hf:user/repo:Q4_K_M; "
                          '--partial removes what is fetched in part\n'), result
        own = case.home / '.cache/kvasir/models'
        own.mkdir(parents=True)
        (own / 'mine.gguf').write_bytes(MODEL)
        case.expect_removed('mine.gguf', 'mine.gguf removed, 3.4 MiB freed\n')


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
                ('http://example.com/x.gguf', "'http://example.com/x.gguf' is an address of the web; download the file and give "
                 'its name, or fetch a model of the Hugging Face hub with -m hf:USER/REPO'),
                ('model.safetensors', "'model.safetensors' holds safetensors, and Kvasir reads GGUF; give a GGUF file of the "
                 'same model, such as -m hf:USER/REPO'),
                ('absent.safetensors', "'absent.safetensors' names safetensors, and Kvasir reads GGUF; give a GGUF file of the "
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


if __name__ == '__main__':
    sys.exit(main(globals()))
