// A policy as a value: what a spec such as "h2o:budget=512,recent=64@demote=q4" or "snapkv+tova" says. Specs are texts
// on the command line, in HTTP requests, in files and in the public headers alone; they are parsed there, once.
// Thread-safety: values.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvasir/status.h"
#include "retention/budget.h"
#include "retention/demotion.h"
#include "retention/policy.h"

namespace kvasir {

// The options given to one policy: "name" or "name:key=value,key=value".
class PolicyOptions {
 public:
  // None given. REQUIRES: there is such a policy.
  explicit PolicyOptions(std::string_view name) : name_(name) {}

  // Errors: kInvalidArgument for a malformed text, an unknown name or key, a key given twice; the message names the
  // accepted ones, and the nearest.
  static Result<PolicyOptions> parse(std::string_view text);

  const std::string& name() const { return name_; }
  bool has(std::string_view key) const { return find(key) != nullptr; }

  // Returns the value, or the option's default. Errors: kInvalidArgument if it is not a whole number in [low, high].
  Result<std::int64_t> get_int(std::string_view key, std::int64_t low, std::int64_t high) const;
  // Returns the value, or the option's default. Errors: kInvalidArgument if it is not one of `choices`.
  Result<std::string> get_choice(std::string_view key, std::span<const std::string_view> choices) const;
  // Returns the value, or the option's default. Errors: kInvalidArgument if it is not a finite number in [low, high].
  Result<double> get_double(std::string_view key, double low, double high) const;
  // Returns the value, or the option's default: tokens, from 1 to `most`, or a percentage above 0% up to 100% with at
  // most four decimals. Errors: kInvalidArgument.
  Result<Budget> get_budget(std::string_view key, std::int64_t most) const;
  // Returns the option `protect` of a policy that keeps `size` tokens (0: no bound); 0 if the policy lacks the
  // option. Errors: kInvalidArgument if it is more than half of the size.
  Result<std::int64_t> get_protect(std::int64_t size) const;
  // The options `pos` and `heads`, which mean the same in every policy that has them.
  Result<PositionMode> get_positions() const;
  Result<PolicyScope> get_scope() const;

  bool accepts(std::string_view key) const;  // whether the policy has the option
  // Returns the option's text as it was given, or its default.
  std::string_view value(std::string_view key) const;

  // Sets an option in its place, or behind all others if it was not given. REQUIRES: accepts(key).
  void set(std::string_view key, std::int64_t value);
  void set(std::string_view key, std::string value);
  void omit(std::string_view key);

  // Returns the options as they were given, in their order.
  std::string text() const;
  // Returns the canonical form: the options of `always` and those that differ from their defaults, in the policy's
  // order, numbers without superfluous digits.
  std::string canonical(std::initializer_list<std::string_view> always) const;

  // Starts to note which options are read, in this object and its copies, so that make_policy can refuse an option that
  // a policy lists but does not read, and hence does not check.
  void note_reads() { reads_ = std::make_shared<std::vector<std::string>>(); }
  // Returns a given option that was not read since note_reads; empty: there is none. REQUIRES: note_reads was called.
  std::string unread() const;

  bool operator==(const PolicyOptions& other) const { return name_ == other.name_ && values_ == other.values_; }

 private:
  const std::string* find(std::string_view key) const;
  std::string_view peek(std::string_view key) const;
  Status refuse(std::string_view key, std::string_view kind) const;

  std::string name_;
  std::vector<std::pair<std::string, std::string>> values_;
  std::shared_ptr<std::vector<std::string>> reads_;  // null: reads are not noted
};

struct PolicySpec {
  std::vector<PolicyOptions> parts;  // one policy, or the two of a composition a+b (retention/composed.h)
  std::optional<Demotion> demotion;  // what follows @demote= (retention/demotion.h)

  // Errors: kInvalidArgument, those of PolicyOptions::parse and parse_demotion, and for more than two parts.
  static Result<PolicySpec> parse(std::string_view text);
  // One policy, with its defaults. REQUIRES: there is such a policy.
  static PolicySpec named(std::string_view name) { return {{PolicyOptions(name)}, {}}; }

  std::string text() const;  // parse() of it gives an equal spec
  // Whether it is a baseline that only the evaluation of perplexity runs.
  bool evaluation_only() const;

  bool operator==(const PolicySpec&) const = default;
};

// Returns the text of a spec with its option `thoughts` replaced: "keep" or "drop"; empty keeps it. An empty spec
// stands for full. Errors: kInvalidArgument and kUnsupported, about("thoughts").
Result<std::string> with_thoughts(std::string_view spec, std::string_view thoughts);

// Returns the text of a spec with its demotion replaced: "off" removes it, an empty one keeps it. For callers that pass
// texts on.
std::string with_demotion(std::string_view spec, std::string_view demotion);

}  // namespace kvasir
