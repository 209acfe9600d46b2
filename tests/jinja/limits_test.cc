// A template can be hostile: it is stopped, and never takes the process with it.
#include <gtest/gtest.h>

#include <ctime>
#include <string>

#include "render.h"

namespace kvasir::jinja {
namespace {

StatusCode code(std::string_view source, const Limits& limits = {}) {
  return try_render(source, {}, limits).status().code();
}

// Renders within a million steps, and returns whether that took no more processor time than these allow anywhere.
bool is_quick(std::string_view source) {
  Limits limits;
  limits.steps = 1'000'000;
  const std::clock_t start = std::clock();
  const StatusCode found = code(source, limits);
  EXPECT_TRUE(found == StatusCode::kOk || found == StatusCode::kResourceExhausted) << source;
  return std::clock() - start < 10 * CLOCKS_PER_SEC;
}

TEST(JinjaLimits, Steps) {
  Limits limits;
  limits.steps = 10'000;
  EXPECT_EQ(code("{% for i in range(99999) %}{% endfor %}", limits), StatusCode::kResourceExhausted);
  EXPECT_EQ(code("{% for i in range(99) %}{% endfor %}", limits), StatusCode::kOk);
}

TEST(JinjaLimits, Output) {
  Limits limits;
  limits.output_bytes = 10;
  EXPECT_EQ(code("{{ 'x' * 10 }}", limits), StatusCode::kOk);
  EXPECT_EQ(code("{{ 'x' * 11 }}", limits), StatusCode::kResourceExhausted);
}

TEST(JinjaLimits, Memory) {
  EXPECT_EQ(code("{{ 'x' * 100000000000 }}"), StatusCode::kResourceExhausted);
  EXPECT_EQ(code("{% set ns = namespace(x='xx') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}"),
            StatusCode::kResourceExhausted);
  // What is dropped does not count.
  Limits limits;
  limits.memory_bytes = 200'000;
  EXPECT_EQ(code("{% for i in range(999) %}{% set x = 'x' * 9999 %}{% endfor %}", limits), StatusCode::kOk);
}

TEST(JinjaLimits, Depth) {
  EXPECT_EQ(code("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), StatusCode::kResourceExhausted);
  EXPECT_EQ(code("{{ " + std::string(99'999, '(') + " }}"), StatusCode::kInvalidArgument);
  EXPECT_EQ(code("{{ " + std::string(99'999, '[') + " }}"), StatusCode::kInvalidArgument);
  EXPECT_EQ(code("{% set ns = namespace(x=1) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}"),
            StatusCode::kInvalidArgument);
  std::string maps = "{{ ['a']|map(";
  for (int i = 0; i < 9000; ++i) maps += "'map', ";
  EXPECT_EQ(code(maps + "'upper')|list }}"), StatusCode::kInvalidArgument);
  std::string sum = "{{ 1";
  for (int i = 0; i < 9999; ++i) sum += " + 1";
  EXPECT_EQ(code(sum + " }}"), StatusCode::kInvalidArgument);
  // A value that refers to itself is given back.
  EXPECT_EQ(code("{% set a = namespace() %}{% set a.b = a %}{% macro m() %}{% endmacro %}{% set a.m = m %}"),
            StatusCode::kOk);
}

TEST(JinjaLimits, StepsBoundTime) {
  for (const char* source : {
           "{{ ('a' * 1500000 ~ 'b') in 'a' * 3000000 }}",
           "{{ ('a' * 3000000).find('a' * 1500000 ~ 'b') }}",
           "{{ ('a' * 3000000).rfind('b' ~ 'a' * 1500000) }}",
           "{{ ('a' * 3000000).count('a' * 1500000 ~ 'b') }}",
           "{{ ('a' * 3000000).split('a' * 1500000 ~ 'b')|length }}",
           "{{ ('a' * 3000000).rsplit('b' ~ 'a' * 1500000)|length }}",
           "{{ ('a' * 3000000)|replace('a' * 1500000 ~ 'b', 'c')|length }}",
           "{% set c = 'a' * 100000 ~ 'b' %}{% set b = 'a' * 200000 %}"
           "{% for i in range(100000) %}{% set x = c in b %}{% endfor %}",
           "{% set b = 'b' * 200000 %}{% set c = 'a' * 200000 ~ 'b' %}{{ b.strip(c) }}{{ b|trim(c) }}",
           "{% set b = 'a' * 1000000 %}{% for i in range(100000) %}{% set x = b|length %}{% endfor %}",
           "{% set b = 'a' * 1000000 %}{% for i in range(100000) %}{% set x = b|upper %}{% endfor %}",
           "{% set b = 'a' * 1000000 %}{% for i in range(100000) %}{% set x = b is lower %}{% endfor %}",
           "{% set b = ' ' * 1000000 %}{% for i in range(100000) %}{% set x = b|trim %}{% endfor %}",
       })
    EXPECT_TRUE(is_quick(source)) << source;
}

TEST(JinjaLimits, LengthOfTheSource) {
  const std::string longest(kMostSource, 'x');
  EXPECT_TRUE(parse(longest).ok());
  const Result<Template> longer = parse(longest + "x");
  EXPECT_EQ(longer.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(longer.status().message(), "the template has 1048577 bytes, and at most 1048576 are read");
  EXPECT_FALSE(parse(std::string(kMostSource, '{')).ok());
}

TEST(JinjaLimits, MemoryOfJson) {
  Limits limits;
  limits.memory_bytes = 1'000'000;
  EXPECT_EQ(code("{{ [[[[1]]]]|tojson(indent='x' * 400000) }}", limits), StatusCode::kResourceExhausted);
  EXPECT_EQ(code("{{ [1, 2, 3, 4]|tojson(separators=('x' * 400000, ':')) }}", limits), StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace kvasir::jinja
