#!/usr/bin/env python3
"""Writes tests/tasks/data/prompts.json: the prompts that other programs make of the small files beside it.

write_prompts.py LM_EVAL OPENCOMPASS

The arguments are the folders of the Python packages lm_eval (0.4.13) and opencompass (0.5.4), which need not be
installed: unpacked wheels do. Their texts are LongBench's and InfiniteBench's own. Where a file has the whole prompt
(RULER) or all but line ends (SCBench), so does this script. Needs python3-jinja2 and python3-yaml.
"""
import ast
import csv
import importlib.util
import json
import pathlib
import sys

import jinja2
import yaml

DATA = pathlib.Path(__file__).parent / 'data'
LONGBENCH = ('narrativeqa qasper multifieldqa_en hotpotqa 2wikimqa musique gov_report qmsum multi_news trec triviaqa '
             'samsum passage_count passage_retrieval_en lcc repobench-p').split()
# Where opencompass has other spaces than LongBench, and lm_eval the same.
LONGBENCH_OF_LM_EVAL = {'narrativeqa', 'qasper', 'multi_news'}
RULER = ('niah_single_1 niah_single_2 niah_single_3 niah_multikey_1 niah_multikey_2 niah_multikey_3 niah_multivalue '
         'niah_multiquery vt cwe fwe qa_1 qa_2').split()
# As lm_eval.utils.apply_template.
ENVIRONMENT = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)


class Loader(yaml.SafeLoader):
    """Reads lm_eval's files without running the functions that they name."""


Loader.add_multi_constructor('!', lambda loader, suffix, node: None)


def read(name):
    path = DATA / name
    if path.suffix == '.csv':
        columns = ['question', 'A', 'B', 'C', 'D', 'answer']
        with path.open(newline='') as file:
            return [dict(zip(columns, row)) for row in csv.reader(file)]
    if path.suffix == '.json':
        return json.loads(path.read_text())
    return [json.loads(line) for line in path.read_text().splitlines()]


class LmEval:
    def __init__(self, folder):
        self.tasks = folder / 'tasks'

    def config(self, path):
        return yaml.load((self.tasks / path).read_text(), Loader)

    def functions(self, path):
        spec = importlib.util.spec_from_file_location(path.replace('/', '_')[:-3], self.tasks / path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


def render(text, item):
    return ENVIRONMENT.from_string(text).render(**item)


def few_shots(text, targets, examples, items, description=''):
    """As ConfigurableTask.fewshot_context, with the delimiters that it has by default."""
    solved = [render(text, item) + ' ' + target + '\n\n' for item, target in zip(examples, targets)]
    before = description + ''.join(solved)
    return [before + render(text, item) for item in items]


def mmlu(lm_eval):
    text = lm_eval.config('mmlu/default/_default_template_yaml')['doc_to_text']
    description = lm_eval.config('mmlu/default/mmlu_abstract_algebra.yaml')['description']
    examples, items = ([dict(item, choices=[item[letter] for letter in 'ABCD']) for item in read(name)]
                       for name in ['mmlu/dev/bread_baking_dev.csv', 'mmlu/test/bread_baking_test.csv'])
    examples = examples[:5]
    return few_shots(text, [item['answer'] for item in examples], examples, items,
                     description.replace('abstract algebra', 'bread baking'))


def gsm8k(lm_eval):
    text = lm_eval.config('gsm8k/gsm8k.yaml')['doc_to_text']
    examples = read('gsm8k/train.jsonl')[:5]
    return few_shots(text, [item['answer'] for item in examples], examples, read('gsm8k/test.jsonl'))


def opencompass_prompt(folder, path):
    """Returns the only prompt that a file of configuration has."""
    [file] = (folder / 'configs' / 'datasets').glob(path)
    found = [node.value.value for node in ast.walk(ast.parse(file.read_text()))
             if isinstance(node, ast.keyword) and node.arg == 'prompt' and isinstance(node.value, ast.Constant)]
    [prompt] = [each for each in found if each]
    return prompt


def longbench_data(name):
    # The only task whose items must name all labels.
    return 'longbench/trec.jsonl' if name == 'trec' else 'longbench/longbench.jsonl'


def longbench(lm_eval, opencompass, name):
    if name in LONGBENCH_OF_LM_EVAL:
        text = lm_eval.config(f'longbench/{name}.yaml')['doc_to_text']
        return [render(text, dict(item, question=item['input'])) for item in read(longbench_data(name))]
    folder = 'longbench' + name.removesuffix('-p')
    text = opencompass_prompt(opencompass, f'longbench/{folder}/*_gen_*.py')
    return [text.format(**item) for item in read(longbench_data(name))]


def longbench_v2(lm_eval, opencompass):
    text = lm_eval.config('longbench2/_longbench_common_yaml')['doc_to_text']
    ending = opencompass_prompt(opencompass, 'longbenchv2/longbenchv2_gen_*.py')
    ending = ending[ending.index('Format your response'):]
    return [render(text.removesuffix('Answer:'), {
        'context': item['context'].strip(), 'question': item['question'],
        'choices': [item['choice_' + letter].strip() for letter in 'ABCD']}) + ending
        for item in read('longbench_v2/data.json')]


def infinitebench(lm_eval):
    functions = lm_eval.functions('infinitebench/utils.py')
    of_functions = {'longbook_choice_eng': functions.doc_to_text_longbook_choice,
                    'code_debug': functions.doc_to_text_code_debug, 'code_run': functions.doc_to_text_code_run,
                    'math_find': functions.doc_to_text_math_find,
                    'longdialogue_qa_eng': functions.doc_to_text_longdialogue}
    for name in ['passkey', 'number_string', 'kv_retrieval', 'longbook_qa_eng', 'longbook_sum_eng', *of_functions]:
        items = read(f'infinitebench/{name}.jsonl')
        if name in of_functions:
            yield name, [of_functions[name](item) for item in items]
        else:
            config = lm_eval.config(f'infinitebench/infinitebench_{name.replace("_eng", "_en")}.yaml')
            yield name, [config['description'] + render(config['doc_to_text'], item) for item in items]


def scbench(name, before=''):
    """As create_multiturn_prompt, each question as if it were the first."""
    return [f'{before}{item.get("context", item.get("input"))}\n\n{turn["input"]}'
            for item in read(f'scbench/{name}.jsonl') for turn in item['multi_turns']]


def all_prompts(lm_eval, opencompass):
    yield 'mmlu', 'mmlu/test/bread_baking_test.csv', mmlu(lm_eval)
    yield 'gsm8k', 'gsm8k/test.jsonl', gsm8k(lm_eval)
    for name, config in [('math', 'hendrycks_math_algebra'), ('math_500', 'hendrycks_math_algebra')]:
        text = lm_eval.config(f'hendrycks_math/{config}.yaml')['doc_to_text']
        yield name, f'{name}/test.jsonl', [render(text, item) for item in read(f'{name}/test.jsonl')]
    for name in LONGBENCH:
        yield 'longbench_' + name.replace('-', '_'), longbench_data(name), longbench(lm_eval, opencompass, name)
    yield 'longbench_v2', 'longbench_v2/data.json', longbench_v2(lm_eval, opencompass)
    ruler = [item['input'] + item.get('answer_prefix', '') for item in read('ruler/validation.jsonl')]
    for name in RULER:
        yield 'ruler_' + name, 'ruler/validation.jsonl', ruler
    for name, prompts in infinitebench(lm_eval):
        yield 'infinitebench_' + name, f'infinitebench/{name}.jsonl', prompts
    keys = lm_eval.config('infinitebench/infinitebench_kv_retrieval.yaml')['description']
    yield 'scbench_kv', 'scbench/kv.jsonl', scbench('kv', keys)
    for name in ['prefix_suffix', 'vt']:
        yield 'scbench_' + name, f'scbench/{name}.jsonl', scbench(name)
    yield 'generated', 'generated/kv_retrieval.jsonl', [
        item['input'] + item['answer_prefix'] for item in read('generated/kv_retrieval.jsonl')]
    yield 'generated_turns', 'generated/kv_turns.jsonl', [
        item['context'] + turn['input'] + turn['answer_prefix']
        for item in read('generated/kv_turns.jsonl') for turn in item['turns']]


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    lm_eval, opencompass = LmEval(pathlib.Path(sys.argv[1])), pathlib.Path(sys.argv[2])
    prompts = {name: {'data': data, 'prompts': made} for name, data, made in all_prompts(lm_eval, opencompass)}
    (DATA / 'prompts.json').write_text(json.dumps(prompts, indent=1, ensure_ascii=False) + '\n')
    print(f'{len(prompts)} tasks')


if __name__ == '__main__':
    main()
