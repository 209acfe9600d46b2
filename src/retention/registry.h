// Every retention policy by name: its options, defaults, formula and reference, and the way to make one from a spec.
// Thread-safety: the registry is constant.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/status.h"
#include "retention/budget.h"
#include "retention/policy.h"

namespace kvasir {

struct PolicyOption {
  std::string_view name;
  std::string_view default_value;
  std::string_view range;  // for people
  std::string_view meaning;
};

// Option of every policy that drops tokens. A chat sets it to the length of its system message.
inline constexpr PolicyOption kProtectOption{
    "protect", "0", "0 to 2^40",
    "first tokens of the text, never dropped; counted in the size; a chat sets it to its system message"};
inline constexpr PolicyOption kProtectBesideOption{
    "protect", "0", "0 to 2^40",
    "first tokens of the text, never dropped; in addition to size; a chat sets it to its system message"};

// A parsed spec string "name" or "name:key=value,key=value".
class PolicySpec {
 public:
  // Errors: kInvalidArgument for a malformed spec, an unknown name or key, a key given twice; the message names the
  // accepted ones, and the nearest.
  static Result<PolicySpec> parse(std::string_view text);

  const std::string& name() const { return name_; }
  bool has(std::string_view key) const { return values_.find(key) != values_.end(); }

  // Returns the value, or the option's default. Errors: kInvalidArgument if it is not a whole number in [low, high].
  Result<std::int64_t> get_int(std::string_view key, std::int64_t low, std::int64_t high) const;
  // Returns the value, or the option's default. Errors: kInvalidArgument if it is not one of `choices`.
  Result<std::string> get_choice(std::string_view key, std::span<const std::string_view> choices) const;
  // Returns the value, or the option's default. Errors: kInvalidArgument if it is not a finite number in [low, high].
  Result<double> get_double(std::string_view key, double low, double high) const;
  // The value, or the option's default: tokens, from 1 to `most`, or a percentage above 0% up to 100% with at most four
  // decimals. Errors: kInvalidArgument.
  Result<Budget> get_budget(std::string_view key, std::int64_t most) const;
  // The option `protect` of a policy that keeps `size` tokens (0: without bound); 0 if the policy lacks the option.
  // Errors: kInvalidArgument if it is more than half of the size.
  Result<std::int64_t> get_protect(std::int64_t size) const;
  // The options `pos` and `heads`, which mean the same in every policy that has them.
  Result<PositionMode> get_positions() const;
  Result<PolicyScope> get_scope() const;

  // Whether the policy has the option; and its value as it was given, or its default.
  bool accepts(std::string_view key) const;
  std::string_view text(std::string_view key) const;

  // Gives the option a value, as if the spec had it. REQUIRES: accepts(key).
  void set(std::string_view key, std::int64_t value);
  void set(std::string_view key, std::string value);

  // The spec in canonical form: the options in the policy's order, those of `always` and those that differ from their
  // defaults, numbers without superfluous digits.
  std::string canonical(std::initializer_list<std::string_view> always) const;

 private:
  Status refuse(std::string_view key, std::string_view kind) const;

  std::string name_;
  std::map<std::string, std::string, std::less<>> values_;
};

struct PolicyInfo {
  std::string_view name;
  std::string_view summary;
  std::string_view formula;
  std::string_view reference;
  std::span<const PolicyOption> options;
  std::string_view acts = "after every token, for the whole sequence";  // when it decides, and for which scope
  bool evaluation_only = false;  // a baseline that keeps no cache; only `eval` can run it
  Result<std::unique_ptr<RetentionPolicy>> (*make)(const PolicySpec& spec) = nullptr;
};

std::span<const PolicyInfo* const> all_policies();
const PolicyInfo* find_policy(std::string_view name);  // nullptr if unknown
// The same. Errors: kInvalidArgument; the message names all policies, and the nearest.
Result<const PolicyInfo*> policy_named(std::string_view name);

// Whether the spec names a policy that is for evaluation only.
bool is_evaluation_only(std::string_view spec);

// Parses and makes one policy, or two joined by a + (retention/composed.h); behind either, @demote= and where what is
// dropped goes (retention/demotion.h). Errors: those of parse and of the policy's options, and for evaluation-only
// policies.
Result<std::unique_ptr<RetentionPolicy>> make_policy(std::string_view spec);

// Returns the spec with its size as `tokens`: cap, size, budget or max of the policy, or of the second of two. Errors:
// kInvalidArgument if the spec gives that, or if the policy has no size.
Result<std::string> with_size(std::string_view spec, std::int64_t tokens);

// Returns the spec with protect=`tokens`, or as much of that as it takes, in each of its policies that has this option
// and does not give it: what a chat does for its system message. Specs that do not parse come back as they are.
std::string with_protection(std::string_view spec, std::int64_t tokens);

// Returns how many of the first tokens of a text all policies of a spec protect, by this option; 0: none.
std::int64_t protected_by(std::string_view spec);

// Returns the spec without protect in any of its policies.
std::string without_protection(std::string_view spec);

// Returns a spec that a file names in today's form. Canonical specs of earlier versions left out window and kernel of
// snapkv, pyramidkv and cake where they were the defaults of then, 32 and 5.
std::string spec_of_file(std::string_view spec);

// Whether session files can hold what a sequence under this policy has. Errors: kUnsupported, where it demotes or
// offloads. Of specs that make no policy, those that demote are refused too, and make_policy says why of others.
Status check_saveable(const PolicyTraits& traits);
Status check_saveable(std::string_view spec);

// One per file of this folder.
extern const PolicyInfo kFullPolicy;
extern const PolicyInfo kWindowPolicy;
extern const PolicyInfo kStreamingPolicy;
extern const PolicyInfo kRecomputePolicy;
extern const PolicyInfo kCascadePolicy;
extern const PolicyInfo kH2oPolicy;
extern const PolicyInfo kTovaPolicy;
extern const PolicyInfo kLethePolicy;
extern const PolicyInfo kRandomPolicy;
extern const PolicyInfo kSnapKvPolicy;
extern const PolicyInfo kPyramidKvPolicy;
extern const PolicyInfo kCakePolicy;
extern const PolicyInfo kSyncKvPolicy;
extern const PolicyInfo kQuestPolicy;

}  // namespace kvasir
