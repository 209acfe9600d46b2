// Expected texts are what Python's jinja2 writes with trim_blocks and lstrip_blocks.
#include "jinja/jinja.h"

#include <gtest/gtest.h>

#include "render.h"

namespace kvasir::jinja {
namespace {

TEST(Jinja, WhitespaceControl) {
  EXPECT_EQ(rendered("a\n  {% if true %}\nb\n  {% endif %}\nc\n"), "a\nb\nc");
  EXPECT_EQ(rendered("a {%- if true -%} b {%- endif -%} c"), "abc");
  EXPECT_EQ(rendered("a\n  {%+ if true +%}\nb{% endif %}"), "a\n  \nb");
  EXPECT_EQ(rendered("x\n  {# note #}\ny"), "x\ny");
  EXPECT_EQ(rendered("  {{ 1 }}\n"), "  1");
  EXPECT_EQ(rendered("{% raw %}{{ x }}{% endraw %}"), "{{ x }}");
}

TEST(Jinja, ValuesAreWrittenAsPythonDoes) {
  EXPECT_EQ(rendered("{{ none }} {{ true }} {{ 1.0 }} {{ 1e20 }} {{ [1, 'a', \"it's\"] }} {{ (1,) }}"),
            "None True 1.0 1e+20 [1, 'a', \"it's\"] (1,)");
  EXPECT_EQ(rendered("{{ {'a': none, 2: [true]} }}{{ missing }}"), "{'a': None, 2: [True]}");
}

TEST(Jinja, Operators) {
  EXPECT_EQ(rendered("{{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 'a' ~ 1 ~ none }} {{ 'ab' * 2 }}"),
            "-4 2 3.5 1024 a1None abab");
  EXPECT_EQ(rendered("{{ 1 < 2 < 3 }} {{ 'a' in 'cat' }} {{ 3 not in [1, 2] }} {{ not 1 == 2 }}"),
            "True True True True");
  EXPECT_EQ(rendered("{{ 'x' if false }}|{{ 1 if 0 else 2 }}|{{ 0 or 'y' }}|{{ '' and 1 }}"), "|2|y|");
  EXPECT_EQ(rendered("{{ 'zażółć'[::-1] }} {{ [1, 2, 3][-2:] }} {{ 'abc'[1] }}"), "ćłóżaz [2, 3] b");
}

TEST(Jinja, Statements) {
  EXPECT_EQ(rendered("{% for k, v in {'a': 1, 'b': 2}.items() %}{{ loop.index }}{{ k }}{{ v }}{{ ',' if not loop.last "
                     "}}{% endfor %}"),
            "1a1,2b2");
  EXPECT_EQ(rendered("{% for i in range(9) if i % 2 %}{% if i == 7 %}{% break %}{% endif %}{% if i == 3 %}{% continue "
                     "%}{% endif %}{{ i }}{% else %}none{% endfor %}"),
            "15");
  EXPECT_EQ(rendered("{% for i in [] %}x{% else %}none{% endfor %}"), "none");
  EXPECT_EQ(rendered("{% set x = 1 %}{% for i in [1] %}{% set x = 2 %}{{ x }}{% endfor %}{{ x }}"), "21");
  EXPECT_EQ(rendered("{% set ns = namespace(x=1) %}{% for i in [1] %}{% set ns.x = 5 %}{% endfor %}{{ ns.x }}"), "5");
  EXPECT_EQ(rendered("{% macro f(a, b='-') %}{{ a }}{{ b }}{% endmacro %}{{ f(1) }}{{ f(2, b=3) }}"), "1-23");
  EXPECT_EQ(rendered("{% macro f() %}[{{ caller() }}]{% endmacro %}{% call f() %}x{% endcall %}"), "[x]");
  EXPECT_EQ(rendered("{% set x %}a{{ 1 }}{% endset %}{{ x }}{% filter upper %}b{% endfilter %}"), "a1B");
  EXPECT_EQ(rendered("{% generation %}x{% endgeneration %}"), "x");
}

TEST(Jinja, WhatIsUndefinedStartsNoDictionary) {
  EXPECT_FALSE(try_render("{{ dict(nothing) }}").ok());
  EXPECT_FALSE(try_render("{% set ns = namespace(nothing, x=1) %}{{ ns.x }}").ok());
}

TEST(Jinja, SplitsFromTheRight) {
  EXPECT_EQ(rendered("{{ ' a\u00a0b  ż c '.rsplit()|tojson }}"), R"(["a", "b", "ż", "c"])");
  EXPECT_EQ(rendered("{{ ' a b  ż\u3000c '.rsplit(none, 1)|tojson }}"), R"([" a b  ż", "c"])");
  EXPECT_EQ(rendered("{{ ' ab '.rsplit(none, 3)|tojson }}"), R"(["ab"])");
}

TEST(Jinja, FiltersAndMethods) {
  EXPECT_EQ(rendered("{{ {'a': [1, 'ż\"', none]}|tojson }}"), "{\"a\": [1, \"ż\\\"\", null]}");
  EXPECT_EQ(rendered("{{ [1, {'b': 2}]|tojson(indent=2) }}"), "[\n  1,\n  {\n    \"b\": 2\n  }\n]");
  EXPECT_EQ(rendered("{{ [{'a': 1}, {'a': 2}]|map(attribute='a')|join('-') }}"), "1-2");
  EXPECT_EQ(rendered("{{ [{'a': 1}, {'b': 2}]|selectattr('a', 'defined')|list }}"), "[{'a': 1}]");
  EXPECT_EQ(rendered("{{ ' a b '.split() }}{{ 'a,b,c'.split(',', 1) }}{{ 'xxaxx'.strip('x') }}"),
            "['a', 'b']['a', 'b,c']a");
  EXPECT_EQ(rendered("{{ x|default('d') }}{{ 'a\nb'|indent(2) }}{{ [3, 1, 2]|sort|first }}"), "da\n  b1");
  EXPECT_EQ(rendered("{{ strftime_now('%Y') }}"), "2025");
}

TEST(Jinja, ErrorsNameThePlace) {
  EXPECT_EQ(rendered("a\n {{ x.y }}"), "error: line 2, column 6: 'x' is undefined");
  EXPECT_EQ(rendered("{{ raise_exception('no tools') }}"), "error: line 1, column 19: no tools");
  EXPECT_EQ(rendered("{% if x %}"), "error: line 1, column 11: {% endif %} is missing");
  EXPECT_EQ(rendered("{{ 1 + }}"), "error: line 1, column 8: unexpected '}}'");
  EXPECT_EQ(rendered("{{ [1].append(2) }}").substr(0, 6), "error:");
}

}  // namespace
}  // namespace kvasir::jinja
