// What a person typed is never taken for what the template says.
#include <gtest/gtest.h>

#include <string>

#include "render.h"

namespace kvasir::jinja {
namespace {

// Returns the rendered text with the caller's bytes in brackets.
std::string marked(std::string_view source) {
  const auto text = try_render(source, {{"x", Value::string("Ab c")}, {"n", Value::integer(7)}});
  EXPECT_TRUE(text.ok()) << text.status().message();
  std::string shown;
  std::size_t from = 0;
  for (const Run& run : text->runs()) {
    const std::string bytes = text->bytes().substr(from, run.end - from);
    shown += run.origin == Origin::kCaller ? "[" + bytes + "]" : bytes;
    from = run.end;
  }
  return shown;
}

TEST(JinjaOrigin, FollowsEveryByte) {
  EXPECT_EQ(marked("<s>{{ x }}</s>"), "<s>[Ab c]</s>");
  EXPECT_EQ(marked("{{ '<s>' ~ x ~ n }}"), "<s>[Ab c]7");
  EXPECT_EQ(marked("{{ ('<s>' + x + '</s>')[2:5] }}"), ">[Ab]");
  EXPECT_EQ(marked("{{ x.split(' ')|join('<s>') }}"), "[Ab]<s>[c]");
  EXPECT_EQ(marked("{{ '<s>'.replace('s', x) }}"), "<[Ab c]>");
  EXPECT_EQ(marked("{{ ('<' ~ x)|upper }}"), "<[AB C]");
  EXPECT_EQ(marked("{% set y %}a{{ x|trim }}{% endset %}{{ y }}"), "a[Ab c]");
  EXPECT_EQ(marked("{% for c in x %}{{ c }}-{% endfor %}"), "[A]-[b]-[ ]-[c]-");
  EXPECT_EQ(marked("{% macro f(a) %}<{{ a }}>{% endmacro %}{{ f(x) }}"), "<[Ab c]>");
}

TEST(JinjaOrigin, OfWhatIsComputedFromBoth) {
  EXPECT_EQ(marked("{{ {'k': x}|tojson }}"), "[{\"k\": \"Ab c\"}]");
  EXPECT_EQ(marked("{{ {'k': 1}|tojson }}"), "{\"k\": 1}");
  EXPECT_EQ(marked("{{ {'k': 1}|tojson(separators=(x, ':')) }}"), "[{\"k\":1}]");
  EXPECT_EQ(marked("{{ [1]|tojson(indent=x) }}"), "[[\nAb c1\n]]");
  EXPECT_EQ(marked("{{ strftime_now(x) }}"), "[Ab c]");
  EXPECT_EQ(marked("{{ [x] }}"), "[['Ab c']]");
}

}  // namespace
}  // namespace kvasir::jinja
