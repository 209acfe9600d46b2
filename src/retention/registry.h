// Every retention policy by name: its options, defaults, formula and reference, and the way to make one of a spec.
// Thread-safety: the registry is constant.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/status.h"
#include "retention/policy.h"
#include "retention/policy_spec.h"

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

struct PolicyInfo {
  std::string_view name;
  std::string_view summary;
  std::string_view formula;
  std::string_view reference;
  std::span<const PolicyOption> options;
  std::string_view acts = "after every token, for the whole sequence";  // when it decides, and for which scope
  bool evaluation_only = false;  // a baseline that keeps no cache; only `eval` can run it
  Result<std::unique_ptr<RetentionPolicy>> (*make)(const PolicyOptions& options) = nullptr;
};

std::span<const PolicyInfo* const> all_policies();
const PolicyInfo* find_policy(std::string_view name);  // nullptr if unknown
// As find_policy. Errors: kInvalidArgument for an unknown name; the message names all policies, and the nearest.
Result<const PolicyInfo*> policy_named(std::string_view name);

// Makes the policy of a spec. Errors: kInvalidArgument for invalid and unused options, for policies that do not go
// together (retention/composed.h), for policies that only the evaluation runs, and those of RetentionPolicy::demote.
Result<std::unique_ptr<RetentionPolicy>> make_policy(const PolicySpec& spec);
// Parses the text first. Errors: those of PolicySpec::parse too.
Result<std::unique_ptr<RetentionPolicy>> make_policy(std::string_view text);

// Returns the option that says how many tokens a policy keeps: cap or window of streaming, size, budget, or max if that
// is given; empty: it has none.
std::string_view size_option(const PolicyOptions& options);

// Returns the spec with a size of `tokens`: cap, size, budget or max of the policy, or of the second of two. Errors:
// kInvalidArgument if the spec gives a size already, or if the policy has none.
Result<PolicySpec> with_size(PolicySpec spec, std::int64_t tokens);

// Returns the spec with protect=`tokens`, or the most that it accepts, in each of its policies that has this option and
// does not give it. Chats protect their system message so.
PolicySpec with_protection(const PolicySpec& spec, std::int64_t tokens);

// Returns how many first tokens of a text all policies of a spec protect by this option.
std::int64_t protected_by(const PolicySpec& spec);

// Returns the spec without protect in any of its policies.
PolicySpec without_protection(PolicySpec spec);

// Translates a spec from a file into today's form. Earlier versions left out window and kernel of snapkv, pyramidkv and
// cake where these had their former defaults, 32 and 5.
PolicySpec spec_of_file(PolicySpec spec);

// Checks that session files can hold a sequence under this policy. Errors: kUnsupported if it demotes or offloads. A
// spec that makes no policy is refused only if it demotes; make_policy says what else is wrong with it.
Status check_saveable(const RetentionPolicy& policy);
Status check_saveable(const PolicySpec& spec);

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
extern const PolicyInfo kKeyDiffPolicy;
extern const PolicyInfo kLagKvPolicy;
extern const PolicyInfo kExpectedPolicy;
extern const PolicyInfo kVasePolicy;
extern const PolicyInfo kTriAttentionPolicy;
extern const PolicyInfo kRkvPolicy;
extern const PolicyInfo kMatchingPolicy;
extern const PolicyInfo kKvzipPolicy;
extern const PolicyInfo kSyncKvPolicy;
extern const PolicyInfo kQuestPolicy;

}  // namespace kvasir
