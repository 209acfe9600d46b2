#include "retention/policy_spec.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "base/check.h"
#include "base/nearest.h"
#include "base/status.h"
#include "retention/registry.h"

namespace kvasir {
namespace {

constexpr std::string_view kMark = "@demote=";

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

// Parses the whole of `text` as a number.
template <class Number>
bool parse_number(std::string_view text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

// Parses a share such as "30%" or "12.5%" into millionths; 0: it is none.
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

// Gives equal values one form: 0012 and 12, 30.0% and 30%.
std::string normal_form(std::string_view text) {
  std::int64_t whole = 0;
  double real = 0;
  if (parse_number(text, whole)) return fmt::format("{}", whole);
  if (parse_number(text, real)) return fmt::format("{}", real + 0.0);  // -0 is 0
  if (const std::int64_t millionths = parse_share(text); millionths > 0)
    return fmt::format("{}%", static_cast<double>(millionths) / 1e4);
  return std::string(text);
}

struct SpecText {
  std::string_view policy;
  std::optional<std::string_view> demotion;
};

SpecText split_demotion(std::string_view text) {
  const std::size_t at = text.rfind(kMark);
  if (at == std::string_view::npos) return {text, {}};
  return {text.substr(0, at), text.substr(at + kMark.size())};
}

// Returns the end of "window:size=4@foo=1" from the @ on; empty if there is none. The name of a file may contain an @.
std::string_view unknown_suffix(std::string_view part) {
  const std::size_t at = part.rfind('@');
  if (at == std::string_view::npos) return {};
  const std::size_t equals = part.find_first_not_of("abcdefghijklmnopqrstuvwxyz_", at + 1);
  return equals != std::string_view::npos && part[equals] == '=' ? part.substr(at) : std::string_view();
}

// Splits "a+b" at each + that precedes a name, since numbers may contain a + too.
std::vector<std::string_view> split_parts(std::string_view text) {
  std::vector<std::string_view> parts;
  std::size_t begin = 0;
  for (std::size_t at = text.find('+'); at != std::string_view::npos; at = text.find('+', at + 1)) {
    const char next = at + 1 < text.size() ? text[at + 1] : '\0';
    if (next < 'a' || next > 'z') continue;
    parts.push_back(text.substr(begin, at - begin));
    begin = at + 1;
  }
  parts.push_back(text.substr(begin));
  return parts;
}

std::vector<std::string_view> policy_names() {
  std::vector<std::string_view> names;
  for (const PolicyInfo* known : all_policies()) names.push_back(known->name);
  return names;
}

}  // namespace

Result<const PolicyInfo*> policy_named(std::string_view name) {
  if (const PolicyInfo* info = find_policy(name)) return info;
  return invalid_argument("unknown retention policy '{}'{}", name, choices(name, "the policies", policy_names()));
}

Result<PolicyOptions> PolicyOptions::parse(std::string_view text) {
  const std::size_t colon = text.find(':');
  PolicyOptions spec(text.substr(0, colon));
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
    if (spec.has(key)) return invalid_argument("policy spec '{}': option '{}' is given twice", text, key);
    spec.values_.emplace_back(key, item.substr(equals + 1));
    if (comma == std::string_view::npos) return spec;
    rest = rest.substr(comma + 1);
  }
}

bool PolicyOptions::accepts(std::string_view key) const {
  return find_option(*find_policy(name_), key) != nullptr;
}

std::string_view PolicyOptions::value(std::string_view key) const {
  if (reads_ != nullptr) reads_->emplace_back(key);
  return peek(key);
}

std::string PolicyOptions::unread() const {
  for (const auto& [name, value] : values_)
    if (std::ranges::find(*reads_, name) == reads_->end()) return name;
  return {};
}

std::string_view PolicyOptions::peek(std::string_view key) const {
  const PolicyOption* option = find_option(*find_policy(name_), key);
  KVASIR_CHECK(option != nullptr);
  const std::string* given = find(key);
  return given != nullptr ? std::string_view(*given) : option->default_value;
}

const std::string* PolicyOptions::find(std::string_view key) const {
  for (const auto& [name, value] : values_)
    if (name == key) return &value;
  return nullptr;
}

void PolicyOptions::set(std::string_view key, std::int64_t value) {
  set(key, fmt::format("{}", value));
}

void PolicyOptions::set(std::string_view key, std::string value) {
  KVASIR_CHECK(accepts(key));
  for (auto& [name, given] : values_) {
    if (name != key) continue;
    given = std::move(value);
    return;
  }
  values_.emplace_back(key, std::move(value));
}

void PolicyOptions::omit(std::string_view key) {
  std::erase_if(values_, [&](const auto& given) { return given.first == key; });
}

std::string PolicyOptions::text() const {
  std::string out = name_;
  char separator = ':';
  for (const auto& [name, value] : values_) out += fmt::format("{}{}={}", std::exchange(separator, ','), name, value);
  return out;
}

Status PolicyOptions::refuse(std::string_view key, std::string_view kind) const {
  return invalid_argument("policy '{}': {}={} must be {}, {}", name_, key, value(key), kind,
                          find_option(*find_policy(name_), key)->range);
}

Result<std::int64_t> PolicyOptions::get_int(std::string_view key, std::int64_t low, std::int64_t high) const {
  std::int64_t value = 0;
  if (!parse_number(this->value(key), value) || value < low || value > high) return refuse(key, "a whole number");
  return value;
}

Result<double> PolicyOptions::get_double(std::string_view key, double low, double high) const {
  double value = 0;
  if (!parse_number(this->value(key), value) || !(value >= low && value <= high)) return refuse(key, "a number");
  return value;
}

Result<Budget> PolicyOptions::get_budget(std::string_view key, std::int64_t most) const {
  Budget budget;
  budget.millionths = parse_share(value(key));
  if (budget.is_share()) return budget;
  if (!parse_number(value(key), budget.tokens) || budget.tokens < 1 || budget.tokens > most)
    return refuse(key, "a whole number of tokens or a percentage such as 30%");
  return budget;
}

Result<std::int64_t> PolicyOptions::get_protect(std::int64_t size) const {
  if (!accepts("protect")) return std::int64_t{0};
  KVASIR_ASSIGN_OR_RETURN(const std::int64_t protect, get_int("protect", 0, std::int64_t{1} << 40));
  if (size > 0 && protect > size / 2)
    return invalid_argument("policy '{}': protect={} is more than half of the {} tokens that it keeps; keep more",
                            name_, protect, size);
  return protect;
}

Result<std::string> PolicyOptions::get_choice(std::string_view key, std::span<const std::string_view> choices) const {
  if (std::ranges::find(choices, value(key)) == choices.end())
    return invalid_argument("policy '{}': {}={} must be one of: {}", name_, key, value(key), fmt::join(choices, ", "));
  return std::string(value(key));
}

Result<PositionMode> PolicyOptions::get_positions() const {
  constexpr std::string_view kModes[] = {"auto", "original", "compact"};
  KVASIR_ASSIGN_OR_RETURN(const std::string mode, get_choice("pos", kModes));
  return mode == "auto" ? PositionMode::kAuto : mode == "original" ? PositionMode::kOriginal : PositionMode::kCompact;
}

Result<PolicyScope> PolicyOptions::get_scope() const {
  constexpr std::string_view kScopes[] = {"together", "independent"};
  const Result<std::string> heads = get_choice("heads", kScopes);
  if (!heads.ok()) return heads.status();
  return *heads == "together" ? PolicyScope::kLayer : PolicyScope::kHead;
}

std::string PolicyOptions::canonical(std::initializer_list<std::string_view> always) const {
  std::string out = name_;
  char separator = ':';
  for (const PolicyOption& option : find_policy(name_)->options) {
    const std::string value = normal_form(peek(option.name));
    if (std::ranges::find(always, option.name) == always.end() && value == normal_form(option.default_value)) continue;
    out += fmt::format("{}{}={}", separator, option.name, value);
    separator = ',';
  }
  return out;
}

Result<PolicySpec> PolicySpec::parse(std::string_view text) {
  const SpecText split = split_demotion(text);
  const std::vector<std::string_view> parts = split_parts(split.policy);
  if (parts.size() > 2)
    return invalid_argument(
        "policy spec '{}': at most two policies can be joined, one for the end of a prompt and one for generation",
        split.policy);
  PolicySpec spec;
  for (const std::string_view part : parts) {
    const std::string_view name = part.substr(0, part.find(':'));
    if (name.empty() || name.ends_with('+') || part.ends_with('+'))
      return invalid_argument("policy spec '{}': the name of a policy is missing{}; the policies are: {}", text,
                              split.policy.find('+') == std::string_view::npos ? ""
                              : name.empty()                                   ? " in front of the '+'"
                                                                               : " behind the '+'",
                              joined(policy_names()));
    if (const std::string_view suffix = unknown_suffix(part); !suffix.empty())
      return invalid_argument("policy spec '{}': '{}' is unknown; only '{}' can follow a policy", text, suffix, kMark);
    KVASIR_ASSIGN_OR_RETURN(PolicyOptions options, PolicyOptions::parse(part));
    spec.parts.push_back(std::move(options));
  }
  if (split.demotion) {
    KVASIR_ASSIGN_OR_RETURN(spec.demotion, parse_demotion(*split.demotion));
  }
  return spec;
}

std::string PolicySpec::text() const {
  std::string out;
  for (const PolicyOptions& part : parts) out += (out.empty() ? "" : "+") + part.text();
  return demotion ? fmt::format("{}{}{}", out, kMark, demotion_text(*demotion)) : out;
}

bool PolicySpec::evaluation_only() const {
  return parts.size() == 1 && !demotion && find_policy(parts.front().name())->evaluation_only;
}

std::string with_demotion(std::string_view spec, std::string_view demotion) {
  if (demotion.empty()) return std::string(spec);
  const std::string_view policy = split_demotion(spec).policy;
  return demotion == "off" ? std::string(policy) : fmt::format("{}{}{}", policy, kMark, demotion);
}

Result<std::string> with_thoughts(std::string_view spec, std::string_view thoughts) {
  if (thoughts.empty()) return std::string(spec);
  if (thoughts == "demote")
    return unsupported("thoughts can be kept or dropped, not demoted; give \"keep\" or \"drop\"").about({"thoughts"});
  if (thoughts != "keep" && thoughts != "drop")
    return invalid_argument("thoughts is '{}'; give \"keep\" or \"drop\"", thoughts.substr(0, 40)).about({"thoughts"});
  KVASIR_ASSIGN_OR_RETURN(PolicySpec parsed, PolicySpec::parse(spec.empty() ? "full" : spec));
  if (parsed.parts.size() == 1 && parsed.parts.front().accepts("thoughts")) {
    parsed.parts.front().set("thoughts", std::string(thoughts));
    return parsed.text();
  }
  if (thoughts == "keep") return std::string(spec);
  return unsupported(
             "only the policy full can drop thoughts, and the policy here is '{}'; choose full, or leave thoughts=drop "
             "out",
             spec)
      .about({"thoughts"});
}

}  // namespace kvasir
