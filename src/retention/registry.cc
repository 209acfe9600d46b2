#include "retention/registry.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/status.h"
#include "retention/composed.h"

namespace kvasir {
namespace {

constexpr auto kPolicies = std::to_array<const PolicyInfo*>({
    &kFullPolicy,
    &kWindowPolicy,
    &kStreamingPolicy,
    &kCascadePolicy,
    &kH2oPolicy,
    &kTovaPolicy,
    &kLethePolicy,
    &kSnapKvPolicy,
    &kPyramidKvPolicy,
    &kCakePolicy,
    &kKeyDiffPolicy,
    &kLagKvPolicy,
    &kExpectedPolicy,
    &kVasePolicy,
    &kTriAttentionPolicy,
    &kRkvPolicy,
    &kMatchingPolicy,
    &kKvzipPolicy,
    &kSyncKvPolicy,
    &kQuestPolicy,
    &kRandomPolicy,
    &kRecomputePolicy,
});

}  // namespace

std::span<const PolicyInfo* const> all_policies() {
  return kPolicies;
}

const PolicyInfo* find_policy(std::string_view name) {
  for (const PolicyInfo* info : kPolicies)
    if (info->name == name) return info;
  return nullptr;
}

namespace {

Result<std::unique_ptr<RetentionPolicy>> make_part(const PolicyOptions& options) {
  const PolicyInfo* info = find_policy(options.name());
  if (info->evaluation_only)
    return invalid_argument("policy '{}' is a baseline for the evaluation of perplexity only; choose another",
                            options.name());
  PolicyOptions noting = options;
  noting.note_reads();
  KVASIR_ASSIGN_OR_RETURN(std::unique_ptr<RetentionPolicy> policy, info->make(noting));
  if (const std::string unread = noting.unread(); !unread.empty())
    return invalid_argument(
        "policy '{}' lists the option '{}' but never reads it; omit the option, and mend the policy", options.name(),
        unread);
  return policy;
}

Status no_demoted(std::string_view spec) {
  return unsupported(
             "a session under '{}' cannot be saved: session files do not hold demoted tokens; run it without demote",
             spec)
      .about({"demote", "policy"});
}

}  // namespace

Result<std::unique_ptr<RetentionPolicy>> make_policy(const PolicySpec& spec) {
  KVASIR_CHECK(!spec.parts.empty() && spec.parts.size() <= 2);
  KVASIR_ASSIGN_OR_RETURN(std::unique_ptr<RetentionPolicy> policy, make_part(spec.parts.front()));
  if (spec.parts.size() == 2) {
    KVASIR_ASSIGN_OR_RETURN(const std::unique_ptr<RetentionPolicy> second, make_part(spec.parts.back()));
    KVASIR_ASSIGN_OR_RETURN(policy, compose(*policy, *second));
  }
  if (spec.demotion) KVASIR_RETURN_IF_ERROR(policy->demote(*spec.demotion));
  return policy;
}

Result<std::unique_ptr<RetentionPolicy>> make_policy(std::string_view text) {
  KVASIR_ASSIGN_OR_RETURN(const PolicySpec spec, PolicySpec::parse(text));
  return make_policy(spec);
}

Status check_saveable(const RetentionPolicy& policy) {
  const PolicyTraits& traits = policy.traits();
  if (traits.demotion) return no_demoted(traits.spec);
  if (policy.as<FollowsHeads>() != nullptr)
    return unsupported(
               "a session under '{}' cannot be saved: session files do not hold offloaded keys and values; run it with "
               "offload=off",
               traits.spec)
        .about({"policy"});
  return {};
}

Status check_saveable(const PolicySpec& spec) {
  const Result<std::unique_ptr<RetentionPolicy>> policy = make_policy(spec);
  if (policy.ok()) return check_saveable(**policy);
  return spec.demotion ? no_demoted(spec.text()) : Status();
}

std::string_view size_option(const PolicyOptions& options) {
  if (options.name() == "quest" || options.name() == "synckv" || find_policy(options.name())->evaluation_only)
    return {};
  if (options.accepts("cap")) return options.has("cap") ? "cap" : "window";
  for (const std::string_view size : {"size", "budget"})
    if (options.accepts(size)) return size;
  return options.accepts("max") && options.has("max") ? "max" : std::string_view();
}

Result<PolicySpec> with_size(PolicySpec spec, std::int64_t tokens) {
  PolicyOptions& options = spec.parts.back();
  for (const std::string_view size : {"cap", "window", "size", "budget", "max"})
    if (options.accepts(size) && options.has(size) && (size != "window" || options.accepts("cap")))
      return invalid_argument("{} tokens and {}={} of '{}' both say how many tokens are kept; omit one of them", tokens,
                              size, options.value(size), spec.text());
  for (const std::string_view size : {"cap", "size", "budget", "max"}) {
    if (!options.accepts(size) || options.name() == "quest" || options.name() == "synckv") continue;
    options.set(size, tokens);
    return spec;
  }
  return invalid_argument("policy '{}' has no size in tokens to set; omit one of both", spec.text());
}

PolicySpec with_protection(const PolicySpec& spec, std::int64_t tokens) {
  const auto with = [&](std::int64_t protect) {
    PolicySpec out = spec;
    for (PolicyOptions& part : out.parts)
      if (part.accepts("protect") && !part.has("protect")) part.set("protect", protect);
    return out;
  };
  const auto works = [&](std::int64_t protect) { return make_policy(with(protect)).ok(); };
  if (tokens <= 0 || works(tokens)) return tokens <= 0 ? spec : with(tokens);
  std::int64_t most = 0;  // the largest known to work
  for (std::int64_t bad = tokens; bad - most > 1;) {
    const std::int64_t middle = most + (bad - most) / 2;
    (works(middle) ? most : bad) = middle;
  }
  return most > 0 ? with(most) : spec;
}

std::int64_t protected_by(const PolicySpec& spec) {
  std::optional<std::int64_t> least;
  for (const PolicyOptions& part : spec.parts) {
    const Result<std::int64_t> given = part.get_protect(0);
    const std::int64_t protect = given.ok() ? *given : 0;
    least = std::min(least.value_or(protect), protect);
  }
  return least.value_or(0);
}

PolicySpec without_protection(PolicySpec spec) {
  for (PolicyOptions& part : spec.parts) part.omit("protect");
  return spec;
}

PolicySpec spec_of_file(PolicySpec spec) {
  constexpr std::string_view kOlder[] = {"snapkv", "pyramidkv", "cake"};
  for (PolicyOptions& part : spec.parts) {
    if (std::ranges::find(kOlder, part.name()) == std::end(kOlder)) continue;
    for (const auto& [option, former] : {std::pair("window", 32), std::pair("kernel", 5)})
      if (!part.has(option)) part.set(option, former);
  }
  return spec;
}

}  // namespace kvasir
