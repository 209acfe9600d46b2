#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "base/status.h"
#include "grammar/sources/json_text.h"

namespace kvasir::grammar {
namespace {

constexpr std::size_t kMostDigitsOfLimit = 40;
constexpr std::size_t kMostPlaces = 20;  // decimal places of a number within limits, unless the limits need more
constexpr std::size_t kMostStates = 20'000;

// A limit of numbers that are not negative, digit by digit.
struct DigitLimit {
  std::string whole = "0";
  std::string fraction;  // without trailing zeros
  bool exclusive = false;

  int digit(std::size_t place) const { return place < fraction.size() ? fraction[place] - '0' : 0; }
  // Whether digits other than zero follow the first `place` of the fraction.
  bool goes_on(std::size_t place) const { return place < fraction.size(); }
};

DigitLimit digits_of(const NumberLimits::Limit& limit) {
  DigitLimit digits;
  digits.exclusive = limit.exclusive;
  std::string all = limit.value.digits;
  if (limit.value.exponent >= 0) {
    digits.whole = all == "0" ? "0" : all + std::string(static_cast<std::size_t>(limit.value.exponent), '0');
    return digits;
  }
  const auto places = static_cast<std::size_t>(-limit.value.exponent);
  if (all.size() <= places) all.insert(0, places + 1 - all.size(), '0');
  digits.whole = all.substr(0, all.size() - places);
  digits.fraction = all.substr(all.size() - places);
  while (!digits.fraction.empty() && digits.fraction.back() == '0') digits.fraction.pop_back();
  return digits;
}

bool is_zero(const Decimal& value) {
  return value.digits == "0";
}

// An automaton of the numbers, not negative, with `places` digits before the point that lie within limits.
class WithinLimits {
 public:
  // `most_decimals`: digits behind the point; 0: no point.
  WithinLimits(const std::optional<DigitLimit>& least, const std::optional<DigitLimit>& most, std::size_t places,
               std::size_t most_decimals)
      : least_(least), most_(most), places_(places), most_decimals_(most_decimals) {}

  ByteAutomaton make() {
    // Only a limit with as many digits is met digit by digit; another one is beyond reach or never met.
    id_of({false, 0, least_ && least_->whole.size() == places_, most_ && most_->whole.size() == places_});
    while (!open_.empty()) {
      const auto [key, state] = open_.front();
      open_.pop_front();
      expand(key, state);
    }
    return std::move(automaton_);
  }

 private:
  // `low`, `high`: the digits so far are those of the limit. `place`: digits read, of the whole or of the fraction.
  struct Key {
    bool fraction = false;
    std::size_t place = 0;
    bool low = false;
    bool high = false;
    auto operator<=>(const Key&) const = default;
  };

  std::uint32_t id_of(const Key& key) {
    const auto [found, added] = ids_.try_emplace(key, static_cast<std::uint32_t>(automaton_.states.size()));
    if (added) {
      automaton_.states.emplace_back();
      open_.emplace_back(key, found->second);
    }
    return found->second;
  }

  bool accepts(const Key& key) const {
    if (key.fraction ? key.place == 0 : key.place != places_) return false;
    const std::size_t place = key.fraction ? key.place : 0;
    if (key.low && (least_->goes_on(place) || least_->exclusive)) return false;
    return !key.high || most_->goes_on(place) || !most_->exclusive;
  }

  void expand(const Key& key, std::uint32_t state) {
    automaton_.states[state].accepts = accepts(key);
    if (!key.fraction && key.place == places_) {
      if (most_decimals_ > 0) add_edge(state, '.', {true, 0, key.low, key.high});
      return;
    }
    if (key.fraction && key.place == most_decimals_) return;
    for (int digit = 0; digit < 10; ++digit) {
      if (!key.fraction && key.place == 0 && digit == 0 && places_ > 1) continue;
      Key to = key;
      ++to.place;
      const auto of = [&](const DigitLimit& limit) {
        return key.fraction ? limit.digit(key.place) : limit.whole[key.place] - '0';
      };
      if (key.low && digit < of(*least_)) continue;
      if (key.high && digit > of(*most_)) continue;
      to.low = key.low && digit == of(*least_);
      to.high = key.high && digit == of(*most_);
      add_edge(state, static_cast<char>('0' + digit), to);
    }
  }

  void add_edge(std::uint32_t state, char byte, const Key& to) {
    const std::uint32_t id = id_of(to);
    automaton_.states[state].edges.push_back({static_cast<std::uint8_t>(byte), static_cast<std::uint8_t>(byte), id});
  }

  const std::optional<DigitLimit>& least_;
  const std::optional<DigitLimit>& most_;
  std::size_t places_;
  std::size_t most_decimals_;
  ByteAutomaton automaton_;
  std::map<Key, std::uint32_t> ids_;
  std::deque<std::pair<Key, std::uint32_t>> open_;
};

// Numbers, not negative, within limits that are not negative. `most_decimals`: digits behind the point; 0: no point.
Expr not_negative(Builder& builder, const std::optional<DigitLimit>& least, const std::optional<DigitLimit>& most,
                  std::size_t most_decimals) {
  std::vector<Expr> all;
  const std::size_t first = least ? least->whole.size() : 1;
  const std::size_t last = most ? most->whole.size() : std::max(first + 1, kMostDigitsOfLimit);
  for (std::size_t places = first; places <= last; ++places) {
    // Beyond the limits' digits all numbers are alike: one expression for all lengths.
    if (!most && places > first) {
      const Expr digit = builder.one_of(std::array{CharRange{'0', '9'}});
      std::vector<Expr> parts = {builder.one_of(std::array{CharRange{'1', '9'}}),
                                 builder.repeat(digit, static_cast<int>(places) - 1, static_cast<int>(last) - 1)};
      if (most_decimals > 0)
        parts.push_back(builder.optional(
            builder.sequence({builder.literal("."), builder.repeat(digit, 1, static_cast<int>(most_decimals))})));
      all.push_back(builder.sequence(parts));
      break;
    }
    all.push_back(builder.automaton(WithinLimits(least, most, places, most_decimals).make()));
  }
  return builder.choice(all);
}

// Numbers, not negative, whose value is a multiple of step / 10^places.
Result<Expr> multiples(Builder& builder, const Decimal& step, bool integer) {
  std::uint64_t value = 0;
  std::string digits = step.digits;
  if (step.exponent > 0) digits += std::string(static_cast<std::size_t>(step.exponent), '0');
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  const int places = std::max(0, -step.exponent);
  if (error != std::errc() || end != digits.data() + digits.size() ||
      value > kMostStates / static_cast<std::uint64_t>(places + 2))
    return unsupported("'multipleOf' has too many digits to be enforced; leave it out");
  if (value == 0) return invalid_argument("'multipleOf' must be greater than 0");
  // State: (decimal places read, or -1 before the point; remainder). The remainder is that of the number times
  // 10^places.
  ByteAutomaton automaton;
  const auto state_of = [&](int place, std::uint64_t remainder) {
    return static_cast<std::uint32_t>(static_cast<std::uint64_t>(place + 1) * value + remainder + 1);
  };
  automaton.states.resize(1 + static_cast<std::size_t>(places + 2) * value + 1);
  const auto zeros = static_cast<std::uint32_t>(automaton.states.size() - 1);  // behind the last place only zeros
  const auto scale = [&](std::uint64_t remainder, int times) {
    for (int i = 0; i < times; ++i) remainder = remainder * 10 % value;
    return remainder;
  };
  const auto add = [&](std::uint32_t from, char byte, std::uint32_t to) {
    automaton.states[from].edges.push_back({static_cast<std::uint8_t>(byte), static_cast<std::uint8_t>(byte), to});
  };
  automaton.states[zeros].accepts = true;
  add(zeros, '0', zeros);
  for (int digit = 0; digit < 10; ++digit)
    add(0, static_cast<char>('0' + digit), state_of(-1, static_cast<std::uint64_t>(digit) % value));
  for (int place = -1; place <= places; ++place)
    for (std::uint64_t remainder = 0; remainder < value; ++remainder) {
      const std::uint32_t from = state_of(place, remainder);
      const bool multiple = scale(remainder, places - std::max(place, 0)) == 0;
      automaton.states[from].accepts = multiple && place != 0;
      if (place < 0 && !integer) add(from, '.', state_of(0, remainder));
      if (place == places) {
        if (multiple) add(from, '0', zeros);
        continue;
      }
      for (int digit = 0; digit < 10; ++digit)
        add(from, static_cast<char>('0' + digit),
            state_of(place < 0 ? -1 : place + 1, (remainder * 10 + static_cast<std::uint64_t>(digit)) % value));
    }
  return builder.automaton(minimised(automaton));
}

// Returns how many decimal places a number within limits may have: enough to lie between limits that differ in their
// last place, and for a multiple.
std::size_t decimals_of(const NumberLimits& limits) {
  if (limits.integer) return 0;
  const auto places = [](const Decimal& value) { return static_cast<std::size_t>(std::max(0, -value.exponent)); };
  std::size_t most = kMostPlaces;
  for (const auto* limit : {&limits.least, &limits.most})
    if (*limit) most = std::max(most, places((*limit)->value) + 1);
  return limits.multiple_of ? std::max(most, places(*limits.multiple_of)) : most;
}

}  // namespace

Result<Decimal> parse_decimal(std::string_view text) {
  Decimal value;
  value.negative = text.starts_with('-');
  std::string digits;
  std::size_t i = value.negative ? 1 : 0;
  bool point = false;
  for (; i < text.size() && text[i] != 'e' && text[i] != 'E'; ++i) {
    if (text[i] == '.') {
      point = true;
      continue;
    }
    digits += text[i];
    if (point) --value.exponent;
  }
  if (i < text.size()) {
    int exponent = 0;
    std::string_view rest = text.substr(i + 1);
    if (rest.starts_with('+')) rest.remove_prefix(1);
    if (std::from_chars(rest.data(), rest.data() + rest.size(), exponent).ec != std::errc() || std::abs(exponent) > 100)
      return invalid_argument("the number {} is too large or too small for a limit", text);
    value.exponent += exponent;
  }
  while (digits.size() > 1 && digits.back() == '0' && value.exponent < 0) {
    digits.pop_back();
    ++value.exponent;
  }
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size()));
  if (digits.empty()) return Decimal{};
  value.digits = std::move(digits);
  if (value.digits.size() + static_cast<std::size_t>(std::abs(value.exponent)) > 2 * kMostDigitsOfLimit ||
      value.digits.size() > kMostDigitsOfLimit)
    return invalid_argument("the number {} is too large or too small for a limit", text);
  return value;
}

Status check_numbers(std::string_view json) {
  const auto significant = [](std::string_view number) {
    std::string digits;
    for (const char c : number.substr(0, number.find_first_of("eE")))
      if (c >= '0' && c <= '9') digits += c;
    digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size()));
    digits.erase(digits.find_last_not_of('0') + 1);
    return digits;
  };
  bool quoted = false;
  for (std::size_t i = 0; i < json.size(); ++i) {
    if (json[i] == '"') {
      quoted = !quoted;
    } else if (quoted) {
      i += json[i] == '\\' ? 1 : 0;
    } else if (json[i] == '-' || (json[i] >= '0' && json[i] <= '9')) {
      const std::string_view number =
          json.substr(i, std::min(json.find_first_not_of("0123456789+-.eE", i), json.size()) - i);
      const auto parsed = nlohmann::json::parse(number, nullptr, false);
      const bool held = parsed.is_number() && significant(parsed.dump()) == significant(number);
      const bool in_range = parsed.is_number() && std::abs(parsed.get<double>()) >= std::numeric_limits<double>::min();
      if (!held && !in_range)
        return unsupported("the schema's number {:.100} is out of range; give 0, or a magnitude from 1e-307 to 1e308",
                           number);
      if (!held)
        return unsupported(
            "the schema's number {:.100} has too many digits to be enforced as it is; give at most 15 significant "
            "digits",
            number);
      i += number.size() - 1;
    }
  }
  return {};
}

int compare(const Decimal& a, const Decimal& b) {
  const auto sign = [](const Decimal& value) { return is_zero(value) ? 0 : value.negative ? -1 : 1; };
  if (sign(a) != sign(b)) return sign(a) - sign(b);
  const auto scaled = [](const Decimal& value, int exponent) {
    return value.digits + std::string(static_cast<std::size_t>(value.exponent - exponent), '0');
  };
  const int exponent = std::min(a.exponent, b.exponent);
  const std::string first = scaled(a, exponent), second = scaled(b, exponent);
  const int order = first.size() != second.size() ? (first.size() < second.size() ? -1 : 1) : first.compare(second);
  return sign(a) * order;
}

Result<bool> is_multiple(const Decimal& value, const Decimal& step) {
  if (is_zero(value)) return true;
  const int exponent = std::min(value.exponent, step.exponent);
  const std::string divisor = step.digits + std::string(static_cast<std::size_t>(step.exponent - exponent), '0');
  if (divisor.size() > 36) return unsupported("'multipleOf' has too many digits to be enforced; leave it out");
  __extension__ using Wide = unsigned __int128;
  Wide by = 0, remainder = 0;
  for (const char c : divisor) by = by * 10 + static_cast<Wide>(c - '0');
  if (by == 0) return invalid_argument("'multipleOf' must be greater than 0");
  for (const char c : value.digits) remainder = (remainder * 10 + static_cast<Wide>(c - '0')) % by;
  for (int i = value.exponent; i > exponent; --i) remainder = remainder * 10 % by;
  return remainder == 0;
}

Result<Expr> number_within(Builder& builder, const NumberLimits& limits) {
  std::optional<DigitLimit> low, high;  // of the number without its sign
  std::vector<Expr> all;
  const std::size_t most_decimals = decimals_of(limits);
  // At least 0.
  if (!limits.most || !limits.most->value.negative) {
    if (limits.least && !limits.least->value.negative) low = digits_of(*limits.least);
    if (limits.most) high = digits_of(*limits.most);
    all.push_back(not_negative(builder, low, high, most_decimals));
  }
  std::vector<Expr> negative;
  if (!limits.least || (limits.least->value.negative && !is_zero(limits.least->value))) {
    low.emplace().exclusive = true;  // -0 is left to 0
    high.reset();
    if (limits.most && limits.most->value.negative) low = digits_of(*limits.most);
    if (limits.least) high = digits_of(*limits.least);
    negative.push_back(not_negative(builder, low, high, most_decimals));
  }
  if (limits.multiple_of) {
    KVASIR_ASSIGN_OR_RETURN(const Expr steps, multiples(builder, *limits.multiple_of, limits.integer));
    for (std::vector<Expr>* part : {&all, &negative})
      for (Expr& each : *part) each = builder.both(each, steps);
  }
  for (const Expr each : negative) all.push_back(builder.sequence({builder.literal("-"), each}));
  return builder.choice(all);
}

}  // namespace kvasir::grammar
