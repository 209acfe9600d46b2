#include "retention/registry.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <functional>

#include "base/check.h"
#include "base/nearest.h"
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
    &kSyncKvPolicy,
    &kQuestPolicy,
    &kRandomPolicy,
    &kRecomputePolicy,
});

std::vector<std::string_view> names_of(std::span<const PolicyOption> options) {
  std::vector<std::string_view> names;
  for (const PolicyOption& option : options) names.push_back(option.name);
  return names;
}

std::string joined(const std::vector<std::string_view>& names) {
  return names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
}

// "; the options are: a, b", or where a name is near, "; did you mean 'a'? (the options are: a, b)".
std::string choices(std::string_view typed, std::string_view what, const std::vector<std::string_view>& names) {
  const std::string nearest = did_you_mean(typed, names);
  const std::string list = fmt::format("{} are: {}", what, joined(names));
  return nearest.empty() ? "; " + list : fmt::format("{} ({})", nearest, list);
}

const PolicyOption* find_option(const PolicyInfo& info, std::string_view key) {
  const auto* found = std::ranges::find(info.options, key, &PolicyOption::name).base();
  return found != info.options.data() + info.options.size() ? found : nullptr;
}

// The whole of `text` as a number.
template <class Number>
bool parse_number(std::string_view text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

// "30%" or "12.5%" in millionths, 0 if it is nothing like it.
std::int64_t parse_share(std::string_view text) {
  constexpr std::size_t kDecimals = 4;
  if (!text.ends_with('%')) return 0;
  text.remove_suffix(1);
  const std::size_t point = text.find('.');
  const std::string_view decimals = point == std::string_view::npos ? "" : text.substr(point + 1);
  if (point != std::string_view::npos && decimals.empty()) return 0;
  if (decimals.size() > kDecimals) return 0;
  std::string digits(text.substr(0, point));
  digits += decimals;
  digits.append(kDecimals - decimals.size(), '0');
  std::int64_t millionths = 0;
  if (digits.find_first_not_of("0123456789") != std::string::npos || !parse_number(digits, millionths)) return 0;
  return millionths <= Budget::kWhole ? millionths : 0;
}

// One form for equal values: 0012 and 12, 30.0% and 30%.
std::string normal_form(std::string_view text) {
  std::int64_t whole = 0;
  double real = 0;
  if (parse_number(text, whole)) return fmt::format("{}", whole);
  if (parse_number(text, real)) return fmt::format("{}", real + 0.0);  // -0 is 0
  if (const std::int64_t millionths = parse_share(text); millionths > 0)
    return fmt::format("{}%", static_cast<double>(millionths) / 1e4);
  return std::string(text);
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

Result<const PolicyInfo*> policy_named(std::string_view name) {
  if (const PolicyInfo* info = find_policy(name)) return info;
  std::vector<std::string_view> names;
  for (const PolicyInfo* known : kPolicies) names.push_back(known->name);
  return invalid_argument("unknown retention policy '{}'{}", name, choices(name, "the policies", names));
}

Result<PolicySpec> PolicySpec::parse(std::string_view text) {
  PolicySpec spec;
  const std::size_t colon = text.find(':');
  spec.name_ = text.substr(0, colon);
  KVASIR_ASSIGN_OR_RETURN(const PolicyInfo* info, policy_named(spec.name_));
  if (colon == std::string_view::npos) return spec;
  std::string_view rest = text.substr(colon + 1);
  for (;;) {
    const std::size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    const std::size_t equals = item.find('=');
    if (equals == std::string_view::npos || equals == 0 || equals + 1 == item.size())
      return invalid_argument("policy spec '{}': '{}' is not of the form key=value; the options of '{}' are: {}", text,
                              item, spec.name_, joined(names_of(info->options)));
    const std::string_view key = item.substr(0, equals);
    if (find_option(*info, key) == nullptr)
      return invalid_argument("policy '{}' has no option '{}'{}", spec.name_, key,
                              choices(key, "its options", names_of(info->options)));
    if (!spec.values_.emplace(key, item.substr(equals + 1)).second)
      return invalid_argument("policy spec '{}': option '{}' is given twice", text, key);
    if (comma == std::string_view::npos) return spec;
    rest = rest.substr(comma + 1);
  }
}

bool PolicySpec::accepts(std::string_view key) const {
  return find_option(*find_policy(name_), key) != nullptr;
}

std::string_view PolicySpec::text(std::string_view key) const {
  const PolicyOption* option = find_option(*find_policy(name_), key);
  KVASIR_CHECK(option != nullptr);
  const auto found = values_.find(key);
  return found != values_.end() ? std::string_view(found->second) : option->default_value;
}

void PolicySpec::set(std::string_view key, std::int64_t value) {
  KVASIR_CHECK(accepts(key));
  values_.insert_or_assign(std::string(key), fmt::format("{}", value));
}

void PolicySpec::set(std::string_view key, std::string value) {
  KVASIR_CHECK(accepts(key));
  values_.insert_or_assign(std::string(key), std::move(value));
}

Status PolicySpec::refuse(std::string_view key, std::string_view kind) const {
  return invalid_argument("policy '{}': {}={} must be {}, {}", name_, key, text(key), kind,
                          find_option(*find_policy(name_), key)->range);
}

Result<std::int64_t> PolicySpec::get_int(std::string_view key, std::int64_t low, std::int64_t high) const {
  std::int64_t value = 0;
  if (!parse_number(text(key), value) || value < low || value > high) return refuse(key, "a whole number");
  return value;
}

Result<double> PolicySpec::get_double(std::string_view key, double low, double high) const {
  double value = 0;
  if (!parse_number(text(key), value) || !(value >= low && value <= high)) return refuse(key, "a number");
  return value;
}

Result<Budget> PolicySpec::get_budget(std::string_view key, std::int64_t most) const {
  Budget budget;
  budget.millionths = parse_share(text(key));
  if (budget.is_share()) return budget;
  if (!parse_number(text(key), budget.tokens) || budget.tokens < 1 || budget.tokens > most)
    return refuse(key, "a whole number of tokens or a percentage such as 30%");
  return budget;
}

Result<std::int64_t> PolicySpec::get_protect(std::int64_t size) const {
  if (!accepts("protect")) return std::int64_t{0};
  KVASIR_ASSIGN_OR_RETURN(const std::int64_t protect, get_int("protect", 0, std::int64_t{1} << 40));
  if (size > 0 && protect > size / 2)
    return invalid_argument("policy '{}': protect={} is more than half of the {} tokens that it keeps; keep more",
                            name_, protect, size);
  return protect;
}

Result<std::string> PolicySpec::get_choice(std::string_view key, std::span<const std::string_view> choices) const {
  if (std::ranges::find(choices, text(key)) == choices.end())
    return invalid_argument("policy '{}': {}={} must be one of: {}", name_, key, text(key), fmt::join(choices, ", "));
  return std::string(text(key));
}

Result<PositionMode> PolicySpec::get_positions() const {
  constexpr std::string_view kModes[] = {"auto", "original", "compact"};
  KVASIR_ASSIGN_OR_RETURN(const std::string mode, get_choice("pos", kModes));
  return mode == "auto" ? PositionMode::kAuto : mode == "original" ? PositionMode::kOriginal : PositionMode::kCompact;
}

Result<PolicyScope> PolicySpec::get_scope() const {
  constexpr std::string_view kScopes[] = {"together", "independent"};
  const Result<std::string> heads = get_choice("heads", kScopes);
  if (!heads.ok()) return heads.status();
  return *heads == "together" ? PolicyScope::kLayer : PolicyScope::kHead;
}

std::string PolicySpec::canonical(std::initializer_list<std::string_view> always) const {
  std::string out = name_;
  char separator = ':';
  for (const PolicyOption& option : find_policy(name_)->options) {
    const std::string value = normal_form(text(option.name));
    if (std::ranges::find(always, option.name) == always.end() && value == normal_form(option.default_value)) continue;
    out += fmt::format("{}{}={}", separator, option.name, value);
    separator = ',';
  }
  return out;
}

namespace {

Result<std::unique_ptr<RetentionPolicy>> make_one(std::string_view text) {
  KVASIR_ASSIGN_OR_RETURN(const PolicySpec spec, PolicySpec::parse(text));
  const PolicyInfo* info = find_policy(spec.name());
  if (info->evaluation_only)
    return invalid_argument("policy '{}' is a baseline for the evaluation of perplexity only; choose another",
                            spec.name());
  return info->make(spec);
}

}  // namespace

bool is_evaluation_only(std::string_view text) {
  const PolicyInfo* info = find_policy(text.substr(0, text.find(':')));
  return info != nullptr && info->evaluation_only;
}

namespace {

Result<std::unique_ptr<RetentionPolicy>> make_plain(std::string_view text) {
  KVASIR_ASSIGN_OR_RETURN(const std::optional<ComposedSpec> composed, split_composed(text));
  if (!composed) return make_one(text);
  KVASIR_ASSIGN_OR_RETURN(const std::unique_ptr<RetentionPolicy> first, make_one(composed->first));
  KVASIR_ASSIGN_OR_RETURN(const std::unique_ptr<RetentionPolicy> second, make_one(composed->second));
  return compose(*first, *second);
}

// Replaces each policy of a spec; a spec that cannot be taken apart stays as it is.
std::string map_policies(std::string_view text, const std::function<std::string(std::string_view)>& change) {
  const DemotingSpec spec = split_demotion(text);
  const Result<std::optional<ComposedSpec>> composed = split_composed(spec.policy);
  if (!composed.ok()) return std::string(text);
  std::string out = *composed ? change((*composed)->first) + "+" + change((*composed)->second) : change(spec.policy);
  out += text.substr(spec.policy.size());
  return out;
}

// The spec of one policy, as it was given but for protect.
std::string with_protect_option(std::string_view text, std::int64_t tokens) {
  const Result<PolicySpec> spec = PolicySpec::parse(text);
  if (!spec.ok() || !spec->accepts("protect") || spec->has("protect")) return std::string(text);
  return fmt::format("{}{}protect={}", text, text.find(':') == std::string_view::npos ? ':' : ',', tokens);
}

Status no_demoted(std::string_view spec) {
  return unsupported(
             "a session under '{}' cannot be saved: session files do not hold demoted tokens; run it without demote",
             spec)
      .about({"demote", "policy"});
}

}  // namespace

Status check_saveable(const PolicyTraits& traits) {
  if (traits.demotion) return no_demoted(traits.spec);
  if (traits.offloads)
    return unsupported(
               "a session under '{}' cannot be saved: session files do not hold offloaded keys and values; run it with "
               "offload=off",
               traits.spec)
        .about({"policy"});
  return {};
}

Status check_saveable(std::string_view spec) {
  const Result<std::unique_ptr<RetentionPolicy>> policy = make_policy(spec);
  if (policy.ok()) return check_saveable((*policy)->traits());
  // Without the demotion there may be nothing else to refuse.
  return split_demotion(spec).demotion ? no_demoted(spec) : Status();
}

Result<std::string> with_size(std::string_view text, std::int64_t tokens) {
  const DemotingSpec whole = split_demotion(text);
  KVASIR_ASSIGN_OR_RETURN(const std::optional<ComposedSpec> composed, split_composed(whole.policy));
  KVASIR_ASSIGN_OR_RETURN(const PolicySpec spec, PolicySpec::parse(composed ? composed->second : whole.policy));
  for (const std::string_view size : {"cap", "window", "size", "budget", "max"})
    if (spec.accepts(size) && spec.has(size) && (size != "window" || spec.accepts("cap")))
      return invalid_argument("{} tokens and {}={} of '{}' both say how many tokens are kept; omit one of them", tokens,
                              size, spec.text(size), text);
  for (const std::string_view size : {"cap", "size", "budget", "max"}) {
    if (!spec.accepts(size) || spec.name() == "quest" || spec.name() == "synckv") continue;
    const char separator =
        whole.policy.find(':', composed ? composed->first.size() : 0) == std::string::npos ? ':' : ',';
    return fmt::format("{}{}{}={}{}", whole.policy, separator, size, tokens, text.substr(whole.policy.size()));
  }
  return invalid_argument("policy '{}' has no size in tokens to set; omit one of both", text);
}

std::string with_protection(std::string_view text, std::int64_t tokens) {
  const auto with = [&](std::int64_t protect) {
    return map_policies(text, [&](std::string_view one) { return with_protect_option(one, protect); });
  };
  const auto works = [&](std::int64_t protect) { return make_policy(with(protect)).ok(); };
  if (tokens <= 0 || works(tokens)) return tokens <= 0 ? std::string(text) : with(tokens);
  std::int64_t most = 0;  // that is known to work
  for (std::int64_t bad = tokens; bad - most > 1;) {
    const std::int64_t middle = most + (bad - most) / 2;
    (works(middle) ? most : bad) = middle;
  }
  return most > 0 ? with(most) : std::string(text);
}

std::int64_t protected_by(std::string_view text) {
  std::optional<std::int64_t> least;
  map_policies(text, [&](std::string_view one) {
    const Result<PolicySpec> spec = PolicySpec::parse(one);
    std::int64_t protect = 0;
    if (spec.ok() && spec->accepts("protect")) parse_number(spec->text("protect"), protect);
    least = std::min(least.value_or(protect), protect);
    return std::string(one);
  });
  return least.value_or(0);
}

std::string without_protection(std::string_view text) {
  return map_policies(text, [](std::string_view one) {
    std::string rest(one);
    const std::size_t begin = rest.find("protect=");
    if (begin == std::string::npos) return rest;
    const std::size_t end = rest.find(',', begin);
    if (end != std::string::npos) return rest.erase(begin, end + 1 - begin);
    return rest.substr(0, begin - 1);  // with the comma or colon before it
  });
}

std::string spec_of_file(std::string_view text) {
  return map_policies(text, [](std::string_view one) {
    const Result<PolicySpec> spec = PolicySpec::parse(one);
    std::string whole(one);
    if (!spec.ok() || !spec->accepts("kernel")) return whole;
    for (const auto& [option, former] : {std::pair("window", 32), std::pair("kernel", 5)})
      if (!spec->has(option))
        whole += fmt::format("{}{}={}", whole.find(':') == std::string::npos ? ':' : ',', option, former);
    return whole;
  });
}

Result<std::unique_ptr<RetentionPolicy>> make_policy(std::string_view text) {
  const DemotingSpec spec = split_demotion(text);
  KVASIR_ASSIGN_OR_RETURN(std::unique_ptr<RetentionPolicy> policy, make_plain(spec.policy));
  if (!spec.demotion) return policy;
  KVASIR_ASSIGN_OR_RETURN(const Demotion demotion, parse_demotion(*spec.demotion));
  KVASIR_RETURN_IF_ERROR(policy->demote(demotion));
  return policy;
}

}  // namespace kvasir
