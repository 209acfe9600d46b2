// Grammars for tests: whether a text is one of theirs, byte by byte.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "grammar/compiler.h"
#include "grammar/configurations.h"
#include "grammar/machine.h"

namespace kvasir::test {

inline Result<grammar::Machine> machine_of(const GrammarSource& source) {
  grammar::Builder builder;
  const grammar::Rule root = builder.declare("the grammar");
  auto body = grammar::read_source(builder, source);
  if (!body.ok()) return body.status();
  builder.define(root, *body);
  grammar::CompileBudget budget;
  return make_machine(
      builder, root, [](std::string_view name) { return std::string(name); }, budget);
}

// Follows texts through a machine. Fails where a grammar does not compile; `matches` is false for all texts then.
class Follower {
 public:
  explicit Follower(Result<grammar::Machine> machine) {
    EXPECT_TRUE(machine.ok()) << machine.status().message();
    if (!machine.ok()) return;
    machine_ = std::make_unique<grammar::Machine>(std::move(*machine));
    configurations_ = std::make_unique<grammar::Configurations>(*machine_);
    configurations_->grant(kSteps);
    start_ = configurations_->start();
  }
  explicit Follower(const GrammarSource& source) : Follower(test::machine_of(source)) {}
  explicit Follower(grammar::Builder& builder, grammar::Expr expr) : Follower(machine_of_expr(builder, expr)) {}

  bool matches(std::string_view text) {
    const grammar::Configurations::Id id = behind(text);
    return id != grammar::Configurations::kNone && (*configurations_)[id].complete;
  }
  // Whether a text goes on to one of the grammar.
  bool begins(std::string_view text) { return behind(text) != grammar::Configurations::kNone; }

 private:
  static constexpr std::size_t kSteps = 100'000'000;

  static Result<grammar::Machine> machine_of_expr(grammar::Builder& builder, grammar::Expr expr) {
    const grammar::Rule root = builder.declare("root");
    builder.define(root, expr);
    grammar::CompileBudget budget;
    return make_machine(
        builder, root, [](std::string_view name) { return std::string(name); }, budget);
  }
  grammar::Configurations::Id behind(std::string_view text) {
    if (configurations_ == nullptr) return grammar::Configurations::kNone;
    grammar::Configurations::Id id = start_;
    configurations_->grant(kSteps);
    for (const char c : text) {
      if (id == grammar::Configurations::kNone) break;
      id = configurations_->step(id, machine_->class_of[static_cast<std::uint8_t>(c)]);
    }
    EXPECT_FALSE(configurations_->exhausted()) << text;
    return id;
  }

  std::unique_ptr<grammar::Machine> machine_;
  std::unique_ptr<grammar::Configurations> configurations_;
  grammar::Configurations::Id start_ = grammar::Configurations::kNone;
};

inline GrammarSource source_of(GrammarSource::Kind kind, std::string text, bool compact = true) {
  GrammarSource source;
  source.kind = kind;
  source.text = std::move(text);
  source.compact = compact;
  return source;
}
inline GrammarSource schema_source(std::string text, bool compact = true) {
  return source_of(GrammarSource::Kind::kJsonSchema, std::move(text), compact);
}
inline GrammarSource gbnf_source(std::string text) {
  return source_of(GrammarSource::Kind::kGbnf, std::move(text));
}
inline GrammarSource regex_source(std::string text) {
  return source_of(GrammarSource::Kind::kRegex, std::move(text));
}

// Expects that a grammar is refused with this code, by a message that contains `part`.
inline void expect_refused(const GrammarSource& source, StatusCode code, std::string_view part) {
  const auto machine = machine_of(source);
  ASSERT_FALSE(machine.ok()) << source.text.substr(0, 300);
  EXPECT_EQ(machine.status().code(), code) << machine.status().message();
  EXPECT_NE(machine.status().message().find(part), std::string::npos)
      << machine.status().message() << " for " << source.text.substr(0, 300);
}

}  // namespace kvasir::test
