#include "chat/template_survey.h"

#include <gtest/gtest.h>

#include "chat/python_strip.h"

namespace kvasir {
namespace {

std::string survey(std::string_view source) {
  return survey_template(source).value_or("none");
}

TEST(TemplateSurvey, DifferentSpellingsAreOne) {
  const std::string one = "{%for m in messages%}{{'<'+m.role+'>\n'}}{%endfor%}";
  EXPECT_EQ(survey("{% for m in messages %}{{ '<' + m['role'] + '>\\n' }}{% endfor %}"), one);
  EXPECT_EQ(
      survey(
          "{%- for m in messages -%}\n  {{- \"<\" }}{{ m[\"role\"] }}{# c #}{{- '>' + \"\\n\" -}}\n{%- endfor -%}\n"),
      one);
  EXPECT_EQ(survey("{% for m in messages %}\n<{{ m.role }}>\n{% endfor %}\r\n"), one) << "text between tags";
  EXPECT_EQ(survey("{{ 'it\\'s' }}"), "{{'it\\'s'}}");
  EXPECT_EQ(survey("{{ \"a\\\\n'\" + 'b' | trim }}"), "{{'a\\\\n\\''+'b'|trim}}");
}

TEST(TemplateSurvey, WhiteSpaceIsTrimmedAsByJinja) {
  EXPECT_EQ(survey("a \n  {% if x %}\n b {%- endif +%}\n c"), "{{'a \n'}}{%if x%}{{' b'}}{%endif%}{{'\n c'}}");
  EXPECT_EQ(survey("  {{ x }}\n  {%+ set y=1 %}\n"), "{{'  '+x+'\n  '}}{%set y=1%}");
  EXPECT_EQ(survey("{# c #}\n  {# d -#}\n\n x"), "{{'x'}}");
}

TEST(TemplateSurvey, BranchesThatAreNeverTakenAreGone) {
  EXPECT_EQ(survey("{% if tools %}a{% else %}b{% endif %}"), "{{'b'}}");
  EXPECT_EQ(survey("{% if x %}a{% elif message.role == 'tool' or tools is not none and y %}b{% else %}c{% endif %}"),
            "{%if x%}{{'a'}}{%else%}{{'c'}}{%endif%}");
  EXPECT_EQ(survey("{% if x and not message.tool_calls %}a{% elif (x) %}b{% endif %}"), "{%if x%}{{'a'}}{%endif%}");
  EXPECT_EQ(survey("{% if not (message.role == 'tool' or 'tool_calls' in message) %}a{% endif %}"), "{{'a'}}");
  EXPECT_EQ(survey("{% if x %}a{% elif date_string is not defined %}b{% elif y %}c{% else %}d{% endif %}"),
            "{%if x%}{{'a'}}{%else%}{{'b'}}{%endif%}");
  EXPECT_EQ(survey("{% if tools %}{% for t in tools %}{% if t %}a{% else %}b{% endif %}{% endfor %}{% endif %}c"),
            "{{'c'}}");
}

TEST(TemplateSurvey, ConditionsKeepTheirMeaning) {
  EXPECT_EQ(survey("{% if not (a and b) %}x{% endif %}"), "{%if not(a and b)%}{{'x'}}{%endif%}");
  EXPECT_EQ(survey("{% if not (a or tools) %}x{% endif %}"), "{%if not a%}{{'x'}}{%endif%}");
  EXPECT_EQ(survey("{% if (a or b) and c %}x{% endif %}"), "{%if (a or b) and c%}{{'x'}}{%endif%}");
  EXPECT_EQ(survey("{% if (a == 1) != (b == 2) %}x{% endif %}"), "{%if (a==1)!=(b==2)%}{{'x'}}{%endif%}");
  EXPECT_EQ(survey("{% if not (message.role == 'assistant' and message.tool_calls) %}x{% endif %}"), "{{'x'}}");
  EXPECT_EQ(survey("{% if f(a and b) %}x{% endif %}"), "{%if f(a and b)%}{{'x'}}{%endif%}");
  const std::string deep = "{% if " + std::string(3000, '(') + "a" + std::string(3000, ')') + " %}x{% endif %}";
  EXPECT_NE(survey(deep), "none");
}

TEST(TemplateSurvey, WhatIsNoJinjaIsNone) {
  for (const char* source : {"{{", "{% if x", "{{ 'a }}", "{# a", "{% endif %}", "{% if x %}",
                             "{% for x in y %}{% endif %}", "{% else %}", "{% elif x %}", "{{ '\\x41' }}"})
    EXPECT_EQ(survey(source), "none") << source;
}

TEST(PythonStrip, TakesUnicodeWhiteSpace) {
  EXPECT_EQ(strip(" \t\n\v\f\r\x1C\x1D\x1E\x1F\u0085\u00A0\u1680\u2000\u200A\u2028\u2029\u202F\u205F\u3000 a b\u3000"),
            "a b");
  EXPECT_EQ(strip("\u200Ba\uFEFF"), "\u200Ba\uFEFF");
  EXPECT_EQ(strip("\xE2\x80 \xA0"), "\xE2\x80 \xA0") << "no characters";
  EXPECT_EQ(strip(" \u2003 "), "");
  EXPECT_EQ(strip("\n\n a\n", '\n'), " a");
}

}  // namespace
}  // namespace kvasir
