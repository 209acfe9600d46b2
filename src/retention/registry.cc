#include "retention/registry.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "base/check.h"
#include "base/status.h"

namespace kvasir {
namespace {

constexpr std::array<const PolicyInfo*, 4> kPolicies = {&kFullPolicy, &kWindowPolicy, &kStreamingPolicy,
                                                        &kRecomputePolicy};

std::string joined_names(std::span<const PolicyOption> options) {
  std::vector<std::string_view> names;
  for (const PolicyOption& option : options) names.push_back(option.name);
  return names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
}

const PolicyOption* find_option(const PolicyInfo& info, std::string_view key) {
  const auto* found = std::ranges::find(info.options, key, &PolicyOption::name).base();
  return found != info.options.data() + info.options.size() ? found : nullptr;
}

}  // namespace

std::span<const PolicyInfo* const> all_policies() {
  return kPolicies;
}

const PolicyInfo* find_policy(std::string_view name) {
  for (const PolicyInfo* info : kPolicies)
    if (info->name == name) return info;
  return nullptr;
}

Result<PolicySpec> PolicySpec::parse(std::string_view text) {
  PolicySpec spec;
  const std::size_t colon = text.find(':');
  spec.name_ = text.substr(0, colon);
  const PolicyInfo* info = find_policy(spec.name_);
  if (info == nullptr) {
    std::vector<std::string_view> names;
    for (const PolicyInfo* known : kPolicies) names.push_back(known->name);
    return invalid_argument("unknown retention policy '{}'; the policies are: {}", spec.name_, fmt::join(names, ", "));
  }
  if (colon == std::string_view::npos) return spec;
  std::string_view rest = text.substr(colon + 1);
  for (;;) {
    const std::size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    const std::size_t equals = item.find('=');
    if (equals == std::string_view::npos || equals == 0 || equals + 1 == item.size())
      return invalid_argument("policy spec '{}': '{}' is not of the form key=value; the options of '{}' are: {}", text,
                              item, spec.name_, joined_names(info->options));
    const std::string_view key = item.substr(0, equals);
    if (find_option(*info, key) == nullptr)
      return invalid_argument("policy '{}' has no option '{}'; its options are: {}", spec.name_, key,
                              joined_names(info->options));
    if (!spec.values_.emplace(key, item.substr(equals + 1)).second)
      return invalid_argument("policy spec '{}': option '{}' is given twice", text, key);
    if (comma == std::string_view::npos) return spec;
    rest = rest.substr(comma + 1);
  }
}

Result<std::int64_t> PolicySpec::get_int(std::string_view key, std::int64_t low, std::int64_t high) const {
  const auto found = values_.find(key);
  const PolicyOption* option = find_option(*find_policy(name_), key);
  KVASIR_CHECK(option != nullptr);
  const std::string_view text = found != values_.end() ? std::string_view(found->second) : option->default_value;
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = !text.empty() && end == text.data() + text.size() && error != std::errc::invalid_argument;
  if (!whole || error == std::errc::result_out_of_range || value < low || value > high)
    return invalid_argument("policy '{}': {}={} must be a whole number, {}", name_, key, text, option->range);
  return value;
}

Result<std::string> PolicySpec::get_choice(std::string_view key, std::span<const std::string_view> choices) const {
  const auto found = values_.find(key);
  const PolicyOption* option = find_option(*find_policy(name_), key);
  KVASIR_CHECK(option != nullptr);
  const std::string_view text = found != values_.end() ? std::string_view(found->second) : option->default_value;
  if (std::ranges::find(choices, text) == choices.end())
    return invalid_argument("policy '{}': {}={} must be one of: {}", name_, key, text, fmt::join(choices, ", "));
  return std::string(text);
}

Result<std::unique_ptr<RetentionPolicy>> make_policy(std::string_view text) {
  KVASIR_ASSIGN_OR_RETURN(const PolicySpec spec, PolicySpec::parse(text));
  const PolicyInfo* info = find_policy(spec.name());
  if (info->evaluation_only)
    return invalid_argument("policy '{}' is a baseline for evaluation only; use it with 'kvasir eval ppl'",
                            spec.name());
  return info->make(spec);
}

}  // namespace kvasir
