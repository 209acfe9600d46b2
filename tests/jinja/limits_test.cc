// A template can be hostile: it is stopped, and never takes the process with it.
#include <gtest/gtest.h>

#include <string>

#include "render.h"

namespace kvasir::jinja {
namespace {

StatusCode code(std::string_view source, const Limits& limits = {}) {
  return try_render(source, {}, limits).status().code();
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
  std::string sum = "{{ 1";
  for (int i = 0; i < 9999; ++i) sum += " + 1";
  EXPECT_EQ(code(sum + " }}"), StatusCode::kInvalidArgument);
  // A value that refers to itself is given back.
  EXPECT_EQ(code("{% set a = namespace() %}{% set a.b = a %}{% macro m() %}{% endmacro %}{% set a.m = m %}"),
            StatusCode::kOk);
}

}  // namespace
}  // namespace kvasir::jinja
