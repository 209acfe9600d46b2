#!/usr/bin/env python3
"""Writes the scores that the published metrics give to predictions made here.

write_vectors.py LONGBENCH RULER LEVAL INFINITEBENCH MINFERENCE LM_EVAL VECTORS.json

The first six are source trees: THUDM/LongBench, NVIDIA/RULER, OpenLMLab/LEval, OpenBMB/InfiniteBench,
microsoft/MInference and EleutherAI/lm-evaluation-harness (or its unpacked wheel). Only the functions of theirs that score
are run, so that nothing they import for models and data sets is needed. Needs numpy, rouge 1.0.1, rouge-score 0.1.2 and
fuzzywuzzy 0.18.0, and must not find Levenshtein: LongBench's requirements do not name it, and fuzzywuzzy then uses
difflib. ROUGE of L-Eval and InfiniteBench is rouge-score's, which L-Eval calls and `evaluate` wraps; L-Eval splits
sentences by NLTK first, which changes none of the three scores that it reports. A case for which an original raises has
the score 0.
Written with lm-evaluation-harness 0.4.13, numpy 2.4.6 and Python 3.11.
"""

import ast
import collections
import contextlib
import io
import json
import pathlib
import random
import re
import string
import types

import argparse
import difflib
import warnings

import numpy
import rouge
from rouge_score import rouge_scorer

warnings.simplefilter('ignore')  # fuzzywuzzy advises Levenshtein
from fuzzywuzzy import fuzz  # noqa: E402

WORDS = (
    'the a an cat dog river of in and to Paris London 1999 42 3.14 treaty signed king queen castle stone north '
    'answer model memory token cache because however first second Third'
).split()
TEXTS = [
    '', ' ', '.', '...', 'the', 'The', 'a.', 'Yes', 'no', '42', '42.', ' 42 ', '-7', '1,234', '$1,234.50', '3.14',
    '007', 'The answer is 42.', 'the answer is: B', 'Answer: C. because of the castle', 'B', 'B.', 'AB', '(C)', 'A, C',
    'D\n', 'A B C', 'Paris', 'paris!', 'The city of Paris, France', 'An apple a day', 'a an the', 'the-an_a',
    "don't stop", 'U.S.A.', 'naïve café', 'NAÏVE CAFÉ', 'İstanbul', 'ßtraße', 'ЁЖИК ёжик', '東京 は 日本', '東京は日本', 'ａｂｃ',
    '٤٢', 'x²', '½ cup', 'a\u0301b', 'K', 'one\ttwo\nthree', 'one\u00a0two', 'one\u2003two\u3000three', 'a\x1cb',
    'a\x00b', 'line one\n\nline two', '🙂 smile 🙂', 'e\u0301 é', 'No. 5 is here. It is no. 6.', 'Hello.World.', '. . .',
    'x. .y', 'one. one. one', 'inf', 'nan', '1e3', '1_000', '1__0', 'None', 'none of the above', '\\frac{1}{2}', '0.5',
    '1/2', '\\boxed{42}', '$x$', '#### 42', '#### 1,234.', '#### -5 #### 6',
]


def functions(path, *names, **known):
    """The named functions and classes of a source file, run without the rest of it."""
    tree = ast.parse(path.read_text())
    tree.body = [node for node in tree.body if getattr(node, 'name', None) in names]
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            node.decorator_list = []
    # Annotations name types that are not imported.
    tree.body.insert(0, ast.parse('from __future__ import annotations').body[0])
    known.update(re=re, string=string, Counter=collections.Counter)
    exec(compile(tree, str(path), 'exec'), known)
    if missing := [name for name in names if name not in known]:
        raise SystemExit(f'{path} has no {missing}')
    return types.SimpleNamespace(**{name: known[name] for name in names})


class Originals:
    def __init__(self, longbench, ruler, leval, infinitebench, minference, lm_eval):
        assert fuzz.SequenceMatcher is difflib.SequenceMatcher, 'Levenshtein must not be installed'
        self.longbench = functions(
            longbench / 'LongBench/metrics.py',
            'normalize_answer', 'count_score', 'retrieval_score', 'code_sim_score', 'classification_score',
            'rouge_score', 'f1_score', 'qa_f1_score',
            fuzz=fuzz,
            Rouge=rouge.Rouge,
        )
        self.longbench_v2 = functions(longbench / 'pred.py', 'extract_answer')
        # They round a mean of many samples, in per cent.
        self.ruler = functions(
            ruler / 'scripts/eval/synthetic/constants.py',
            'string_match_all',
            'string_match_part',
            round=lambda value, _: value,
        )
        self.ruler_text = functions(ruler / 'scripts/eval/evaluate.py', 'postprocess_pred')
        self.args = types.SimpleNamespace(pred_file='')
        self.leval = functions(
            leval / 'Evaluation/auto_eval.py',
            'process_output_mc', 'process_gt_mc', 'process_math', 'process_output_code', 'process_gt_code',
            args=self.args,
        )
        self.leval_em = functions(leval / 'Evaluation/em.py', 'normalize_answer', 'exact_match_score')
        self.leval_f1 = functions(leval / 'Evaluation/f1.py', 'normalize_answer', 'f1_score')
        names = [
            'normalize_answer', 'f1_score', 'qa_f1_score', 'first_int_match', 'get_score_one_kv_retrieval',
            'get_score_one_passkey', 'get_score_one_number_string', 'get_score_one_code_run',
            'get_score_one_code_debug', 'get_score_one_math_find', 'get_score_one_math_calc',
            'get_score_one_longdialogue_qa_eng', 'get_score_one_longbook_choice_eng', 'get_score_one_longbook_qa_eng',
        ]
        self.infinitebench = functions(infinitebench / 'src/compute_scores.py', *names)
        self.scbench = functions(minference / 'scbench/compute_scores.py', *names, 'string_match_all')
        self.lm_eval = functions(lm_eval / 'lm_eval/api/metrics.py', 'exact_match_hf_evaluate', np=numpy)
        self.filters = functions(lm_eval / 'lm_eval/filters/extraction.py', 'RegexFilter', Filter=object)
        self.math = functions(
            lm_eval / 'lm_eval/tasks/hendrycks_math/utils.py',
            'process_results', 'is_equiv', 'remove_boxed', 'last_boxed_only_string', 'fix_fracs', 'fix_a_slash_b',
            'remove_right_units', 'fix_sqrt', 'strip_string',
        )
        self.scorer = rouge_scorer.RougeScorer(['rouge1', 'rouge2', 'rougeL', 'rougeLsum'], use_stemmer=False)


def raised(function, *arguments):
    """The function's value; 0 where it raises, as its callers have no score then."""
    try:
        return function(*arguments)
    except (IndexError, ValueError, AssertionError, OverflowError):
        return 0


def best(score):
    return lambda prediction, references, classes: max([0.0, *(raised(score, prediction, one) for one in references)])


GSM8K = dict(regexes_to_ignore=[',', '\\$', '(?s).*#### ', '\\.$'], ignore_case=True)
FLEXIBLE = dict(regex_pattern='(-?[$0-9.,]{2,})|(-?[0-9]+)', group_select=-1)


def number(text):
    """A reference as InfiniteBench's data has it."""
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


def metrics(o):
    def exact(prediction, reference, **options):
        return float(o.lm_eval.exact_match_hf_evaluate([prediction], [reference], **options)['exact_match'])

    def filtered(text, **options):
        return o.filters.RegexFilter(**options).apply([[text]], [{}])[0][0]

    def rouge_of(kind):
        return best(lambda p, r: o.scorer.score(r, p)[kind].fmeasure)

    def exam(file):
        def score(prediction, reference):
            o.args.pred_file = file
            return o.leval_em.exact_match_score(o.leval.process_output_mc(prediction), o.leval.process_gt_mc(reference))

        return best(score)

    def code(prediction, reference):
        return o.leval_em.exact_match_score(
            o.leval.process_output_code(prediction, reference), o.leval.process_gt_code(reference)
        )

    def math(prediction, reference):
        return o.math.process_results({'solution': '\\boxed{' + reference + '}'}, [prediction])['exact_match']

    def ruler(function):
        return lambda p, r, c: function([o.ruler_text.postprocess_pred(p, {})], [r]) / 100

    def infinite(benchmark, name, label=lambda references: references):
        function = getattr(benchmark, 'get_score_one_' + name)
        return lambda p, r, c: float(raised(function, p, label(r), ''))

    first = lambda references: references[0]  # noqa: E731
    numbers = lambda references: [number(one) for one in references]  # noqa: E731
    result = {
        'qa_f1_score': best(o.longbench.qa_f1_score),
        'rouge_score': best(o.longbench.rouge_score),
        'classification_score': lambda p, r, c: max(
            o.longbench.classification_score(p, one, all_classes=c) for one in r
        ),
        'retrieval_score': best(o.longbench.retrieval_score),
        'count_score': best(o.longbench.count_score),
        'code_sim_score': best(o.longbench.code_sim_score),
        'longbench_v2_accuracy': best(lambda p, r: float(o.longbench_v2.extract_answer(p) == r)),
        'string_match_all': ruler(o.ruler.string_match_all),
        'string_match_part': ruler(o.ruler.string_match_part),
        'exact_match': best(exact),
        'exact_match case': best(lambda p, r: exact(p, r, ignore_case=True)),
        'exact_match punctuation': best(lambda p, r: exact(p, r, ignore_punctuation=True)),
        'exact_match numbers': best(lambda p, r: exact(p, r, ignore_numbers=True)),
        'exact_match regexes': best(
            lambda p, r: exact(p, r, regexes_to_ignore=[r'\s+', r'\b[Tt]he\b', r'x*?', r'\.$'])
        ),
        'gsm8k_strict_match': best(lambda p, r: exact(filtered(p), r, **GSM8K)),
        'gsm8k_flexible_extract': best(lambda p, r: exact(filtered(p, **FLEXIBLE), r, **GSM8K)),
        'math_equivalence': best(lambda p, r: float(o.math.is_equiv(p, r))),
        'hendrycks_math': best(math),
        'leval_exact_match': best(o.leval_em.exact_match_score),
        'leval_exam': exam('quality'),
        'leval_exam_coursera': exam('coursera'),
        'leval_gsm': best(lambda p, r: o.leval_em.exact_match_score(o.leval.process_math(p), o.leval.process_math(r))),
        'leval_code': best(code),
        'leval_f1': best(o.leval_f1.f1_score),
        'leval_rouge_1': rouge_of('rouge1'),
        'leval_rouge_2': rouge_of('rouge2'),
        'leval_rouge_l': rouge_of('rougeL'),
        'infinitebench_passkey': infinite(o.infinitebench, 'passkey'),
        'infinitebench_number_string': infinite(o.infinitebench, 'number_string'),
        'infinitebench_kv_retrieval': infinite(o.infinitebench, 'kv_retrieval', first),
        'infinitebench_math_calc': infinite(o.infinitebench, 'math_calc', numbers),
        'infinitebench_code_run': infinite(o.infinitebench, 'code_run', numbers),
        'infinitebench_longbook_choice_eng': infinite(o.infinitebench, 'longbook_choice_eng'),
        'infinitebench_longdialogue_qa_eng': infinite(o.infinitebench, 'longdialogue_qa_eng'),
        'infinitebench_longbook_qa_eng': infinite(o.infinitebench, 'longbook_qa_eng'),
        'infinitebench_longbook_sum_eng': rouge_of('rougeLsum'),
        'scbench_kv_retrieval': infinite(o.scbench, 'kv_retrieval', first),
        'scbench_longdialogue_qa_eng': infinite(o.scbench, 'longdialogue_qa_eng'),
        'scbench_string_match_all': lambda p, r, c: o.scbench.string_match_all(p, r),
    }
    for name, benchmark in {'infinitebench': o.infinitebench, 'scbench': o.scbench}.items():
        # Their labels are not plain strings.
        result[name + '_math_find'] = lambda p, r, c, f=infinite(benchmark, 'math_find', numbers): (
            f(p, r, c) if isinstance(number(r[0]), (int, float)) else 0.0
        )
        result[name + '_code_debug'] = lambda p, r, c, f=infinite(benchmark, 'code_debug'): (
            f(p, r, c) if len(r) > 1 else 0.0
        )

    preparations = {
        'lstrip': str.lstrip,
        'rstrip': str.rstrip,
        'strip': str.strip,
        'first_line': lambda text: text.lstrip('\n').split('\n')[0],
        'ruler_postprocess': lambda text: o.ruler_text.postprocess_pred(text, {}),
        'longbench_v2_letter': lambda text: o.longbench_v2.extract_answer(text) or '',
        'gsm8k_strict_match': filtered,
        'gsm8k_flexible_extract': lambda text: filtered(text, **FLEXIBLE),
    }

    def boxed(text):
        try:
            return o.math.remove_boxed(o.math.last_boxed_only_string(text))
        except (AssertionError, TypeError):
            return ''

    preparations['last_boxed'] = boxed
    return result, preparations


def sentences(rng, count, end='. '):
    return end.join(' '.join(rng.choice(WORDS) for _ in range(rng.randint(1, 12))) for _ in range(count))


def varied(rng, text):
    """A near match: words dropped, swapped, doubled or in another case."""
    words = text.split(' ')
    for _ in range(rng.randint(1, 4)):
        i = rng.randrange(len(words))
        kind = rng.randrange(5)
        if kind == 0 and len(words) > 1:
            del words[i]
        elif kind == 1:
            words[i] = rng.choice(WORDS)
        elif kind == 2:
            words.insert(i, words[rng.randrange(len(words))])
        elif kind == 3:
            words[i] = words[i].swapcase()
        else:
            words[i] += rng.choice(['.', ',', '!', '\n', ' .', '"', "'s"])
    return ' '.join(words)


def texts(rng, count):
    """Predictions with references, of no benchmark in particular."""
    for _ in range(count):
        kind = rng.randrange(4)
        if kind == 0:
            yield rng.choice(TEXTS), [rng.choice(TEXTS) for _ in range(rng.randint(1, 3))]
        elif kind == 1:
            text = rng.choice(TEXTS)
            yield varied(rng, text), [text]
        else:
            text = sentences(rng, rng.randint(1, 5), rng.choice(['. ', '.\n', '\n', ' ']))
            yield varied(rng, text), [text] if kind == 2 else [varied(rng, text), sentences(rng, 2)]


CODE = [
    'return self.value', '    return self._value', 'for i in range(10):', '\tif (a == b) {', 'x = "# no"', '// comment',
    '```python', '# comment', 'int main(int argc, char** argv) {', 'self.assertEqual(a, b)', 'äöü = "naïve 東京"', '',
    '   ', 'a', 'b',
]
LETTERS = [
    'A', 'B', 'C', 'D', 'A.', '(B)', 'C)', 'AC', 'A, C', 'A C', 'ABD', 'BA', ' D', 'B.\n', 'E', 'None', '', ' ',
    'The answer is C.', 'A is wrong. B) is right', 'Both A and C.', 'answer: D', 'Question A', 'x A. Question B.',
    'CAB. D', 'a b c', 'Because', 'DDA', 'AE B.', 'Options: A\u00a0and D)', 'ABCD', 'BD A.', 'E. F. A',
]
MATH = [
    '\\frac{1}{2}', '\\frac12', '\\frac1{2}', '\\dfrac{1}{2}', '\\tfrac 12', '1/2', '0.5', '.5', '\\frac{3}{4}', '3/4',
    '-3/4', '+3/4', '03/4', '1/2/3', 'x/2', 'x/y', '\\sqrt3', '\\sqrt{3}', '2\\sqrt 3', '\\sqrt', '\\frac', '\\frac1',
    '\\frac{a}b', '\\frac ab', '\\left(1,2\\right)', '(1,2)', '(1, 2)', '90^\\circ', '90^{\\circ}', '90',
    '5\\text{ cm}', '5', '5\\text{ a}\\text{ b}', '\\$5', '5\\%', '5%', 'x=5', 'xy=5', 'xyz=5', 'x=y=5', '5\\!',
    '10,\\!000', '10,000', '10000', '\\\\frac12', '{.5}', '{0.5}', ' .5', 'π', '\\sqrtπ', '\\fracπ2', '\\text{east}',
    'east', '', ' ', '\n5', '1_0/2', '10/2', '٣/4', 'ab=π', '\\frac{1}{\\sqrt2}', '\\frac{1}{\\sqrt{2}}', '\\frac\\pi2',
]
BOXES = [
    '\\boxed{42}', 'so \\boxed{\\frac{1}{2}} and', '\\boxed 42$ and', '\\boxed 1 \\boxed 2', '\\boxed{1} \\boxed{2}',
    '\\boxed{1', '\\boxed{}', '\\boxed', '\\fbox{3}', '\\boxedx{3}', 'none', '', '\\boxed{a} \\fbox{b}',
    '\\boxed{\\boxed{7}}', '}\\boxed{{1}{2}}}', '\\boxed {5}', '\\boxed{π}', '\\boxed{1}\\boxed 2',
]
GRADE_SCHOOL = [
    '#### 72', 'so\n#### 1,234', '#### 5.', '#### -5', '#### $5', '####5', '5 + 5 = 10\n#### 10',
    'the answer is $1,200.50', 'It is 7.', 'no number', '', '.', '..', '1 2 3', '#### 1 #### 2', '#### .', '- 5', '-$5',
    '10.', '5.\n', '#### 72.', 'x#### 72', '72', '72.0', '$72', '7,2', 'a72b', '٧٢', 'Q #### 12 #### 72',
]
SOLUTIONS = [
    'The answer is 42.', 'The answer is 42', 'The answer is $1,200.', 'The answer is  5', 'The answer is\n5',
    'so 7 apples', '3 then 4\n\n5', 'none', '', '4.5 apples', 'x12y', 'The answer is -3',
    'The answer is x The answer is 9', 'The answer is  The answer is 8', '٤٢', '9',
]
OUTPUTS = [
    '[1, 2, 3]', 'The final output will be [1, 2, 3].', "the output of the code is '5'",
    'the final output is 7 8 9 10 11 12', '7', '7.0', '[[1,2], [3,4]]', 'It would be printed: [ [1, 2] , [3, 4] ]',
    'hello world', 'HELLO  WORLD\n', '', ' ', 'a the final output b the final output hello world and more words here',
]
INFINITE = [
    '71432', 'The pass key is 71432.', '071432', 'no', '', 'The key is "abc-1" here', 'abc-1', 'value: abc-1, then',
    '5', '5.0', '5.7 or 6', 'It is 5', '-5', '٥', '1e3', 'x12.5y', '12.', '1000', '5 6 7', '5, 6', 'the result is 5.',
    'result: `5`', 'result 5 apples', '1_000', '+5', '4', 'True', '3.9', '10000000000000000000001',
    '10000000000000000000000',
]
CHOICES = [
    'A', 'B. because', 'the answer is: B', 'The answer is B', 'answer: B', 'option is  B', 'the answer is:',
    'the answer is', 'I say B', 'I say AB', 'maybe "C"', 'x CD y D', '', ' \n', 'None', 'Paris', 'Paris!',
    'the answer is: Paris', 'the answer is Paris', 'answer: "B"', 'answer is: D answer: B', 'éB B',
]
DEBUG = [
    'B.', 'B: foo', 'B foo', 'The answer is: B', 'the answer is: foo', 'is:B', 'is: foo.bar', 'answer:', 'answer: ',
    'correct option is: B', 'correct option is: foo', 'The correct Option is:  option B', 'foo', '**answer**: foo',
    'answer: - foo', '', 'é.', 'answer:éfoo', 'is: C answer: B', 'The answer is B',
]
NAMES = [
    'MARGE', 'Marge', '"Marge"', 'It is marge.', 'LISA', 'Lisa and Marge', 'straße', 'STRASSE', 'Margery', '', 'é', 'É',
    'mr. smith',
]


def cases(rng, names):
    """(metric, prediction, references, classes)."""

    def one_of(name, pool, references=None, count=14):
        for _ in range(count):
            answers = references or pool
            yield name, rng.choice(pool), [rng.choice(answers) for _ in range(rng.choice([1, 1, 1, 2]))], []

    for name in names:
        for prediction, references in texts(rng, 5):
            if 'classification' not in name and not name.startswith('exact_match '):
                yield name, prediction, references, []
    for name in [
        'qa_f1_score', 'rouge_score', 'leval_f1', 'leval_rouge_1', 'leval_rouge_2', 'leval_rouge_l',
        'infinitebench_longbook_qa_eng', 'infinitebench_longbook_sum_eng', 'code_sim_score',
    ]:
        for prediction, references in texts(rng, 16):
            yield name, prediction, references, []
    for name, end in [('rouge_score', '. '), ('leval_rouge_l', ' '), ('infinitebench_longbook_sum_eng', '\n')]:
        # Sentences of more than 64 words, and texts of many.
        long = ' '.join(rng.choice(WORDS) for _ in range(150)) + end + sentences(rng, 4, end)
        yield name, varied(rng, varied(rng, long)), [long], []
        yield name, sentences(rng, 12, end), [sentences(rng, 12, end)], []
        yield name, ' '.join(rng.choice('xyz') for _ in range(130)), [
            ' '.join(rng.choice('xyz') for _ in range(129))
        ], []
    for said in ['b a. c b', 'b a. c a', 'c b. b a', 'c a. b a']:  # of two alignments, one adds a word
        yield 'rouge_score', said, ['a b'], []
        yield 'infinitebench_longbook_sum_eng', said.replace('. ', '\n'), ['a b'], []
    for _ in range(24):
        classes = rng.sample(
            ['Number', 'Number of people', 'people', 'Location', 'Loc', 'Human', 'Human group', 'group', 'Other'], 6
        )
        yield 'classification_score', ' '.join(rng.sample(classes, 2)) + rng.choice(['', '.', ' x']), [
            rng.choice(classes)
        ], classes
    yield 'classification_score', 'anything', ['Number'], []
    yield 'classification_score', 'a Number', ['Number', 'Loc'], ['Number', 'Number', '', 'Num']
    for _ in range(20):
        number_ = str(rng.randint(1, 12))
        said = rng.choice(
            ['Paragraph {}', 'It is {}.', 'Paragraphs {} and 7', '{}{}', '5 {} 5', '0{}', '-{}', '{}.5', 'none']
        ).replace('{}', number_)
        yield 'retrieval_score', said, [
            rng.choice(['Paragraph ', 'Paragraph x Paragraph ', 'paragraph ']) + number_
        ], []
        yield 'count_score', said, [rng.choice([number_, number_, '5', ' ' + number_])], []
    yield 'retrieval_score', '٤٢', ['Paragraph ٤٢'], []
    for _ in range(24):
        lines = rng.sample(CODE, 3)
        yield 'code_sim_score', rng.choice(['', '\n', '\n\n', '  \n']) + '\n'.join(lines), [
            rng.choice([lines[1], rng.choice(CODE)])
        ], []
    for size in (199, 200, 201, 450):  # where characters become popular
        for alphabet in ('ab', 'abcdefghijklmnopqrstuvwxyz (),=' * 3 + 'XYZé'):
            line = ''.join(rng.choice(alphabet) for _ in range(size))
            cut = rng.randrange(size)
            yield 'code_sim_score', line[cut:] + 'zz' + line[:cut], [line], []
    for said in [
        'The correct answer is (A)', 'the correct answer is (A)', 'The correct answer is **(A)**',
        'The correct answer is A', 'The correct answer is (E)', '(A)', '',
        'The correct answer is B. The correct answer is (A)', 'The correct answer is (A', 'The correct answer is  (A)',
        'The correct answer is D, or The correct answer is A',
    ]:
        yield 'longbench_v2_accuracy', said, ['A'], []
    for name in ['string_match_all', 'string_match_part', 'scbench_string_match_all']:
        for _ in range(12):
            keys = [rng.choice(TEXTS + WORDS) for _ in range(rng.randint(1, 8))]
            yield name, rng.choice([' ', '\n', '\x07', '\x00x']).join(
                key.upper() for key in keys[::2]
            ) + '\x1f ', keys, []
    for name in [name for name in names if name.startswith('exact_match')]:
        pool = TEXTS + [
            'the Answer', 'THE answer', 'the, answer', 'the answer 42', 'The answer.', 'theanswer', 'answer',
            'xx answer.\n',
        ]
        yield from one_of(name, pool)
        for text in rng.sample(pool, 8):
            yield name, rng.choice([text.swapcase(), text + '.', text + ' 7', '"' + text + '"', ' the ' + text]), [
                text
            ], []
        for said in [
            'aNsWer', 'answer.', 'answer7', '"An.s_wer"', 'the answer\n', 'The  an swer.', 'then answer', 'answer',
        ]:
            yield name, said, ['answer'], []
    for name in ['gsm8k_strict_match', 'gsm8k_flexible_extract']:
        yield from one_of(name, GRADE_SCHOOL, GRADE_SCHOOL, 14)
        for said in GRADE_SCHOOL:
            yield name, said, [rng.choice(['72', 'so 9 * 8\n#### 72']), '1,234', '5'], []
    for name in ['math_equivalence', 'hendrycks_math']:
        for a in MATH:
            for b in rng.sample(MATH, 2):
                yield name, (
                    a
                    if name == 'math_equivalence'
                    else rng.choice(['{}', '${}$', 'so ${}$.', '$1$ is ${}$', '${}']).replace('{}', a)
                ), [b], []
    twins = [
        ('\\frac12', '\\frac{1}{2}'),
        ('1/2', '0.5'),
        ('.5', '0.5'),
        ('90^\\circ', '90'),
        ('(1, 2)', '\\left(1,2\\right)'),
        ('5\\text{ cm}', '5'),
        ('x=5', '5'),
        ('10,\\!000', '10,000'),
        ('\\sqrt3', '\\sqrt{3}'),
        ('x/y', 'x/y'),
        ('x/y ', 'x/y'),
        ('\\frac', '\\frac'),
        ('-3/4', '\\frac{-3}{4}'),
        ('\\frac1{72}', '\\frac{1}{72}'),
        ('ππ=5', '5'), ('πππ=5', '5'),
    ]
    for a, b in twins:
        yield 'math_equivalence', a, [b], []
        yield 'hendrycks_math', f'${a}$', [b], []
    for name in ['leval_exact_match', 'leval_exam', 'leval_exam_coursera']:
        yield from one_of(name, LETTERS, ['A', 'B', 'AC', 'ABD', 'A.', 'D', 'C words', '', 'x'], 30)
        yield from one_of(name, TEXTS, TEXTS, 8)
    yield from one_of('leval_gsm', SOLUTIONS, count=30)
    for said in ['the final output a b 7', 'the final output a b c 7', '7 a b c', '7 a b c d']:
        yield 'leval_code', said, ['7'], []
    yield from one_of('leval_code', OUTPUTS, ['[1, 2, 3]', '7', "'5'", 'hello world', '[[1, 2], [3, 4]]', '7 8'], 30)
    for benchmark in ['infinitebench', 'scbench']:
        for suffix in ['passkey', 'number_string', 'kv_retrieval', 'math_find', 'math_calc', 'code_run']:
            if (name := f'{benchmark}_{suffix}') in names:
                yield from one_of(
                    name,
                    INFINITE,
                    [
                        '71432', 'abc-1', '5', '5.0', '5.7', '12.5', '12', '1000', '1000.0', '', '-5', '3',
                        '10000000000000000000000', '1e3',
                    ],
                )
                for said in INFINITE:
                    yield name, said, [
                        {'passkey': '71432', 'number_string': '71432', 'kv_retrieval': 'abc-1'}.get(suffix, '5')
                    ], []
        yield from (
            (f'{benchmark}_code_debug', said, rng.choice([['foo', 'B'], ['bar', 'C'], ['foo.bar', 'B']]), [])
            for said in DEBUG
        )
        yield from one_of(
            f'{benchmark}_longdialogue_qa_eng',
            NAMES,
            ['MARGE', 'LISA', 'STRASSE', 'straße', 'É', 'MR', 'MR. SMITH'],
            24,
        )
    for references in [['5', '6', '7'], ['5'], ['6', '5'], ['71432', '1']]:
        yield 'infinitebench_math_calc', '5 6 07, 8', references, []
    for said in CHOICES:
        yield 'infinitebench_longbook_choice_eng', said, rng.choice([['B'], ['Paris', 'B'], ['A', 'AB'], ['D']]), []


def known_difference(name, prediction, references):
    """Cases of which src/tasks/metrics/README.md says that they differ."""
    if name == 'leval_gsm':
        return any(c.isdigit() and not c.isdecimal() for c in prediction + ''.join(references))
    # Their answers are ints.
    return name in ('infinitebench_code_run', 'infinitebench_math_calc') and any(
        isinstance(number(one), float) for one in references
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ['longbench', 'ruler', 'leval', 'infinitebench', 'minference', 'lm_eval', 'vectors']:
        parser.add_argument(name, type=pathlib.Path)
    arguments = vars(parser.parse_args())
    vectors = arguments.pop('vectors')
    rng = random.Random(1)
    with contextlib.redirect_stdout(io.StringIO()):  # L-Eval prints each score
        scores, preparations = metrics(Originals(**arguments))
        scored = []
        seen = set()
        for name, prediction, references, classes in cases(rng, list(scores)):
            case = [name, prediction, references, classes]
            if known_difference(name, prediction, references):
                continue
            if json.dumps(case) not in seen:
                seen.add(json.dumps(case))
                scored.append(case + [float(scores[name](prediction, references, classes))])
        inputs = sorted(
            {*TEXTS, *BOXES, *GRADE_SCHOOL, '\n\nfirst\nsecond', '\n', 'The correct answer is (C)', '\x07bell\x07'}
        )
        prepared = [
            [name, text, prepare(text)] for name, prepare in preparations.items() for text in rng.sample(inputs, 30)
        ]
        prepared += [['last_boxed', text, preparations['last_boxed'](text)] for text in BOXES]
    scored.sort(key=lambda case: case[0])
    lines = [json.dumps(case, ensure_ascii=False) for case in scored]
    steps = [json.dumps(case, ensure_ascii=False) for case in prepared]
    vectors.write_text(
        '{"scores": [\n' + ',\n'.join(lines) + '\n],\n"preparations": [\n' + ',\n'.join(steps) + '\n]}\n'
    )
    counts = collections.Counter(case[0] for case in scored)
    above = collections.Counter(case[0] for case in scored if case[-1] > 0)
    for name in scores:
        print(f'{name}: {counts[name]} cases, {above[name]} above 0')
    print(f'{len(scored)} scores, {len(prepared)} preparations')


if __name__ == '__main__':
    main()
